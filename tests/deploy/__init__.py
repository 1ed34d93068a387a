"""Tests of the systemd units, the image, the Procfile, and the pages about them."""
