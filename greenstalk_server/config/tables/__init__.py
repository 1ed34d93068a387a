"""The tables of the configuration file: parsed settings of the dashboard, which the dashboard imports too."""
