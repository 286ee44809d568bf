// Benchmarks of the group `text`: data sets.
#pragma once

#include <vector>

#include "bench/harness/benchmark.h"

namespace tdock::bench {

// text/stream/jsonl/…: a file of JSON lines of 1 GB (8 MB where `quick` is set) as batches of samples, from opening it
// on; compared with reading the file and parsing each line with simdjson alone, on one thread. The file is made in the
// folder for temporary files. The detail rss_growth_MB is by how much the process's resident memory grew at most.
void AddDatasetBenchmarks(std::vector<Benchmark>& benchmarks, bool quick);

}  // namespace tdock::bench
