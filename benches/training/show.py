"""The table and the figure of what was measured."""

import io
import json
import os
import re

import matplotlib
import numpy as np

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402


# Stands in the table alone.
LEFT_OUT = ["softmax, rate falls", "MLP, rate stays"]


def write(result, folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "training.json"), "w") as file:
        json.dump(result, file)
    shown = table(result)
    with open(os.path.join(folder, "training.md"), "w") as file:
        file.write(shown)
    print(shown)
    plot(result, os.path.join(folder, "training.svg"))


def table(result):
    """Test accuracy at the end, beside a full shuffle with the same seeds."""
    lines = [f"{result['machine']}; {result['seeds']} seeds; {result['seconds']} s in all.", ""]
    for found in result["datasets"]:
        kinds = list(found["rows"][0]["accuracy"])
        lines.append(
            f"**{found['dataset']}**: {found['samples']:,} samples in {found['chunks']} chunks, "
            f"batches of {found['batch']}, {found['epochs']} epochs"
        )
        lines.append("")
        lines.append("| order | mix | " + " | ".join(kinds) + " |")
        lines.append("|---|---|" + "---|" * len(kinds))
        full = found["rows"][-1]["accuracy"]
        for row in found["rows"]:
            mix = "" if row["report"] is None else f"{100 * row['report']['share']:.0f} %"
            cells = [cell(row["accuracy"][kind], full[kind], row) for kind in kinds]
            lines.append(f"| {row['order']} | {mix} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def cell(runs, full, row):
    """Accuracy after the last epoch in percent: mean and spread over the seeds, and the mean difference
    to a full shuffle with its standard error."""
    values, full = [100 * np.array(runs)[:, -1] for runs in (runs, full)]
    text = f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"
    if row["group"] == -1:
        return text
    difference = values - full
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return f"{text} ({difference.mean():+.1f} ± {error:.1f})"


def plot(result, path):
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "diesel", "font.size": 8})
    kinds = [kind for kind in result["datasets"][0]["rows"][0]["accuracy"] if kind not in LEFT_OUT]
    datasets = result["datasets"]
    figure, places = plt.subplots(
        len(kinds), len(datasets), figsize=(3.4 * len(datasets), 2.3 * len(kinds)), squeeze=False
    )
    orders = [row["order"] for row in datasets[-1]["rows"]]
    colours = plt.get_cmap("viridis")
    for column, found in enumerate(datasets):
        rows = found["rows"]
        for line, kind in enumerate(kinds):
            place = places[line][column]
            for row in rows:
                runs = 100 * np.array(row["accuracy"][kind])
                epochs = np.arange(1, runs.shape[1] + 1)
                mean, spread = runs.mean(0), runs.std(0, ddof=1)
                style = {"color": colours(orders.index(row["order"]) / len(orders)), "linewidth": 1.0}
                if row["order"] == "full shuffle":
                    style = {"color": "black", "linewidth": 1.6, "linestyle": "--"}
                if row["order"] == "no shuffle":
                    style = {"color": "red", "linewidth": 1.0}
                place.plot(epochs, mean, label=row["order"], **style)
                place.fill_between(epochs, mean - spread, mean + spread, alpha=0.15, linewidth=0,
                                   color=style["color"])
            place.grid(alpha=0.3)
            if line == 0:
                place.set_title(f"{found['dataset']}, {found['chunks']} chunks")
            if line == len(kinds) - 1:
                place.set_xlabel("epoch")
            if column == 0:
                place.set_ylabel(f"{kind}\ntest accuracy, %", fontsize=7)
    handles, labels = places[0][-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=5, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    with open(path, "w") as file:
        # A hundredth of a point is finer than anybody sees; lines end without a space.
        file.write(re.sub(r" +\n", "\n", re.sub(r"(\.\d\d)\d+", r"\1", drawn.getvalue())))
