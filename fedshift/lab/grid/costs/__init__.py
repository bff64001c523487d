"""``fedshift costs``: what a method costs, as the papers' efficiency tables print it (F2DC, Table 4).

Everything is counted or measured on real rounds of the experiment, played in this process.
"""
