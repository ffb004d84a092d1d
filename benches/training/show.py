"""The tables and the figure of what was measured; as a program, again from the training.json of a folder."""

import io
import json
import os
import re
import sys
from xml.etree import ElementTree

import matplotlib
import numpy as np

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402


SVG = "{http://www.w3.org/2000/svg}"


def write(result, folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "training.json"), "w") as file:
        json.dump(result, file)
    show(result, folder)


def show(result, folder):
    """training.md goes into docs/SHUFFLING.md, training-epochs.md and training.svg into docs/figures."""
    shown = table(result)
    print(shown)
    drawn = {"training.md": shown, "training-epochs.md": epochs(result), "training.svg": plot(result)}
    for name, text in drawn.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


def measured(result):
    return f"{result['machine']}; {result['seeds']} seeds; {result['seconds']} s in all."


def size(found):
    return (
        f"{found['samples']:,} samples in {found['chunks']} chunks, batches of {found['batch']}, "
        f"{found['epochs']} epochs"
    )


def with_spread(values):
    """Mean and standard deviation over the seeds, in percent."""
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"


def table(result):
    """Test accuracy at the end, beside a full shuffle with the same seeds."""
    lines = [measured(result), ""]
    for found in result["datasets"]:
        kinds = list(found["rows"][0]["accuracy"])
        lines += [f"**{found['dataset']}**: {size(found)}", ""]
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
    text = with_spread(values)
    if row["group"] == -1:
        return text
    difference = values - full
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return f"{text} ({difference.mean():+.1f} ± {error:.1f})"


def epochs(result):
    """Test accuracy after every epoch, for every dataset, model and order: a page of its own."""
    lines = [
        "# Accuracy by epoch", "",
        "Of `make bench-training`, see [SHUFFLING](../SHUFFLING.md#does-it-train-as-well): accuracy on other",
        "samples after each epoch, in percent, mean and standard deviation over the seeds.", "",
        measured(result), "",
    ]
    for found in result["datasets"]:
        lines += [f"## {found['dataset']}", "", f"{size(found)}.", ""]
        orders = [row["order"] for row in found["rows"]]
        for kind in found["rows"][0]["accuracy"]:
            lines += [f"**{kind}**", ""]
            lines.append("| epoch | " + " | ".join(orders) + " |")
            lines.append("|---|" + "---|" * len(orders))
            runs = [100 * np.array(row["accuracy"][kind]) for row in found["rows"]]
            for epoch in range(found["epochs"]):
                cells = [with_spread(of_order[:, epoch]) for of_order in runs]
                lines.append(f"| {epoch + 1} | " + " | ".join(cells) + " |")
            lines.append("")
    return "\n".join(lines)


def plot(result):
    """Mean and spread over the seeds by epoch: a row for each model, a column for each dataset."""
    matplotlib.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "diesel", "font.size": 8,
        "font.sans-serif": ["DejaVu Sans"], "axes.spines.top": False, "axes.spines.right": False,
        "xtick.major.size": 0, "ytick.major.size": 0,
    })
    datasets = result["datasets"]
    kinds = list(datasets[0]["rows"][0]["accuracy"])
    figure, places = plt.subplots(
        len(kinds), len(datasets), figsize=(3.4 * len(datasets), 2.0 * len(kinds) + 0.5),
        sharex="col", squeeze=False,
    )
    orders = [row["order"] for row in datasets[-1]["rows"]]
    colours = plt.get_cmap("viridis")
    for column, found in enumerate(datasets):
        for line, kind in enumerate(kinds):
            place = places[line][column]
            for row in found["rows"]:
                runs = 100 * np.array(row["accuracy"][kind])
                numbers = np.arange(1, runs.shape[1] + 1)
                mean, spread = runs.mean(0), runs.std(0, ddof=1)
                style = {"color": colours(orders.index(row["order"]) / len(orders)), "linewidth": 1.0}
                if row["order"] == "full shuffle":
                    style = {"color": "black", "linewidth": 1.6, "linestyle": "--"}
                if row["order"] == "no shuffle":
                    style = {"color": "red", "linewidth": 1.0}
                place.plot(numbers, mean, label=row["order"], **style)
                # One path, where fill_between would define it and use it.
                around = np.concatenate([mean - spread, (mean + spread)[::-1]])
                there_and_back = np.concatenate([numbers, numbers[::-1]])
                place.fill(there_and_back, around, color=style["color"], alpha=0.15, linewidth=0)
            place.grid(axis="y", alpha=0.3)
            place.locator_params(axis="y", nbins=5)
            if line == 0:
                place.set_title(f"{found['dataset']}, {found['chunks']} chunks")
            if line == len(kinds) - 1:
                place.set_xlabel("epoch")
            if column == 0:
                place.set_ylabel(f"{kind}\ntest accuracy, %", fontsize=7)
    handles, labels = places[0][-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=5, frameon=False)
    figure.tight_layout(rect=(0, 0.5 / figure.get_figheight(), 1, 1))
    drawn = io.StringIO()
    nothing = {"Creator": None, "Date": None, "Format": None, "Type": None}
    figure.savefig(drawn, format="svg", metadata=nothing)
    return compact(drawn.getvalue())


def compact(drawn):
    """The same picture with a line for each thing drawn, to a tenth of a point, which nobody sees."""
    root = ElementTree.fromstring(drawn)
    for element in root.iter():
        if element.text and not element.text.strip():
            element.text = None
        element.tail = None
        # Nothing reaches beyond its axes, and no text is turned by nothing.
        element.attrib.pop("clip-path", None)
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        for name in {"d", "x", "y"} & element.attrib.keys():
            words = " ".join(element.get(name).split())
            element.set(name, re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}", words))
    for definitions in list(root.iter(f"{SVG}defs")):
        definitions[:] = [one for one in definitions if one.tag != f"{SVG}clipPath"]
    root.text = "\n"
    root[:] = [one for one in ungrouped(root) if one.tag != f"{SVG}defs" or len(one)]
    for one in root:
        one.tail = "\n"
    ElementTree.register_namespace("", SVG[1:-1])
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def ungrouped(parent):
    """What is drawn, in its order, out of the groups that only name it."""
    for element in parent:
        if element.tag == f"{SVG}g" and not element.attrib.keys() - {"id"}:
            yield from ungrouped(element)
        else:
            yield element


if __name__ == "__main__":
    with open(os.path.join(sys.argv[1], "training.json")) as read:
        show(json.load(read), sys.argv[1])
