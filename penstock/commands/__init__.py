"""Commands: what the command line does once `penstock.cli` has read it, in one module for each stage."""
