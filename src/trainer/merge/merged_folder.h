// A model in the Hugging Face layout, written from wherever its weights are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "core/base/env.h"
#include "tdock/dtype.h"
#include "trainer/merge/weight_source.h"

namespace tdock::trainer {

struct MergeProgress {
  size_t files_done = 0, files = 0;
  uint64_t bytes_done = 0, bytes = 0;
  std::string at = {};  // the weight that is being written, or "" once a file is done
};

struct MergeOptions {
  std::optional<DType> dtype = std::nullopt;    // of the weights; nothing: as they are stored
  uint64_t max_file_bytes = uint64_t{5} << 30;  // beyond it, the weights are split into files with an index
  std::function<void(const MergeProgress&)> progress = [](const MergeProgress&) {};
};

// Writes the weights, config.json with their dtype, generation_config.json and the tokenizer's files into a folder
// beside `target`, named .TARGET.merging, which gets the name `target` once all of it is on the disk. What an earlier
// call with the same source and options has written there, and is still as it was written, is kept; `kept`, if given,
// gets the number of these files. No more than one weight is in memory at a time.
//
// AlreadyExists if `target` is there and not empty, or another process writes it; ResourceExhausted says how much space
// is missing. After an error there is no `target`.
absl::Status WriteMergedFolder(Env& env, const WeightSource& source, const std::string& target,
                               const MergeOptions& options = {}, size_t* kept = nullptr);

// "5GB", "500MB" (powers of 1,000), "2GiB", or bytes.
absl::StatusOr<uint64_t> ParseFileSize(const std::string& text);

}  // namespace tdock::trainer
