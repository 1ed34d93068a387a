"""Build the image of deploy/Dockerfile (`make image`), and resolve the packages in it (`make requirements`)."""
