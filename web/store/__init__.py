"""The dashboard's own data on disk: the audit log, job templates, saved searches, and the reasons for pauses."""
