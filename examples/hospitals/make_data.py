"""Write the example's CSV files: four hospitals with different numbers and ages of patients, and one outcome."""

from pathlib import Path

import numpy as np

rng = np.random.default_rng(0)
for number, (patients, mean_age) in enumerate([(40, 45.0), (60, 55.0), (90, 62.0), (30, 70.0)], start=1):
    age = rng.normal(mean_age, 8.0, patients)
    dose = rng.uniform(0.0, 10.0, patients)
    recovered = rng.uniform(size=patients) < 1.0 / (1.0 + np.exp(-(0.35 * dose - 0.06 * (age - 58.0) - 1.2)))
    lines = ["age,dose,recovered"]
    lines += [f"{a:.1f},{d:.2f},{int(r)}" for a, d, r in zip(age, dose, recovered, strict=True)]
    (Path(__file__).parent / f"hospital-{number}.csv").write_text("\n".join(lines) + "\n")
