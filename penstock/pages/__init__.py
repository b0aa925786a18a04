"""Pages: reports as one HTML file that holds everything, asks nobody for anything, and needs no script to be read."""
