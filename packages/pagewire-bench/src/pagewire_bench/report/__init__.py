"""What is shown of load tests: tables, plots in SVG, one HTML page, comparisons."""
