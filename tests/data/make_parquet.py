"""Writes the Parquet files beside it that tests read: `python3 make_parquet.py`, with pyarrow.

talk.parquet is written by the example of docs/data.md itself.
"""
import pathlib
import re

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = pathlib.Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "data.md"


def example_of_page(file):
    """The code on the page that writes `file`."""
    return re.search(rf"```python writes={re.escape(file)}\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)


def main():
    exec(example_of_page("talk.parquet").replace('"talk.parquet"', repr(str(FOLDER / "talk.parquet"))), {})
    # As examples/data_preprocess/gsm8k.py of verl writes it.
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"content": question, "role": "user"}],
            "ability": "math",
            "reward_model": {"ground_truth": truth, "style": "rule"},
            "extra_info": {"answer": f"... #### {truth}", "index": i, "question": question, "split": "train"},
        }
        for i, (question, truth) in enumerate([("2+2?", "4"), ("How many are a dozen?", "12")])
    ]
    pq.write_table(pa.Table.from_pylist(rows), FOLDER / "verl.parquet")
    # 20 row groups of two records.
    texts = [f"{i:02}" + chr(ord("a") + i % 26) * 100 for i in range(40)]
    pq.write_table(pa.table({"text": texts}), FOLDER / "groups.parquet", row_group_size=2, compression="none",
                   use_dictionary=False)
    # 2 GB of text, said in a few bytes: one word of a dictionary, again and again.
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 10_500, pa.int32()), pa.array(["a" * 200_000]))
    pq.write_table(pa.table({"text": words, "number": [7] * 10_500}), FOLDER / "bomb.parquet", compression="zstd",
                   write_statistics=False, store_schema=False)
    columns = [pa.array(["x"]), pa.array(["y"]), pa.array(["z"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["a", "b", "a"]), FOLDER / "twice.parquet")


if __name__ == "__main__":
    main()
