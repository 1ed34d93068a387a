"""The tables of the configuration file that set up the dashboard; the dashboard imports these modules too."""
