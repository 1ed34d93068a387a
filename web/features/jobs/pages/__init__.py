"""The pages of a job and the forms that change jobs and tubes."""
