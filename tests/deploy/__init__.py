"""What an operator follows: the units, the image, the Procfile and the pages that tell of them."""
