"""``fedshift report``: what a run came to, on one page that opens offline.

The page is made by the process of the command, from the run folder and, where they are at hand, the test images;
nothing of it runs on the server. Matplotlib and scikit-learn are imported by these modules only.
"""

REPORT_FILE = "report.html"  # in the run folder
