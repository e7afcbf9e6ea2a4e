"""Write data on smoking and lung cancer in eight Chinese cities as exports of eight sites.

The counts are from Liu (Int. J. Epidemiology, 1992), as in statsmodels, with one row for each person. Some properties
of exports are invented: different orders of columns, a byte order mark, an additional column, and one missing smoking
status in a hundred.
"""

from pathlib import Path

import numpy as np
import statsmodels.api as sm

FOLDER = Path(__file__).parent
ORDERS = [["person", "smoker", "lung_cancer"], ["lung_cancer", "ward", "smoker", "person"]]


def main() -> None:
    """Write one file for each city."""
    counts = sm.datasets.china_smoking.load_pandas().data
    rng = np.random.default_rng(1992)
    for number, (city, row) in enumerate(counts.iterrows()):
        # the package's spelling of Nanjing
        name = {"Nanjng": "nanjing"}.get(city, city.lower())
        people = [
            {"smoker": smoker, "lung_cancer": cancer}
            for smoker in ("yes", "no")
            for cancer in ("yes", "no")
            for _ in range(int(row[f"smoking_{smoker}_cancer_{cancer}"]))
        ]
        order = ORDERS[number % 2]
        lines = [",".join(order)]
        for person, at in enumerate(rng.permutation(len(people))):
            cells = {**people[at], "person": f"{name[:2].upper()}{person:04d}", "ward": str(rng.integers(1, 4))}
            if rng.random() < 0.01:
                cells["smoker"] = ""
            lines.append(",".join(cells[column] for column in order))
        encoding = "utf-8-sig" if number % 3 == 0 else "utf-8"
        (FOLDER / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding=encoding)


if __name__ == "__main__":
    main()
