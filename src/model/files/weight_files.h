// The weights of a checkpoint folder: one safetensors file, or several with an index.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "model/files/safetensors.h"

namespace tdock::model {

// Thread-safe.
class WeightFiles {
 public:
  // model.safetensors, or the files that model.safetensors.index.json names. NotFound names a file that is not there;
  // InvalidArgument an index that is malformed, points out of the folder, or contradicts the files.
  static absl::StatusOr<WeightFiles> Open(Env& env, const std::string& folder);

  // Sorted.
  std::vector<std::string> names() const;
  // The file that has this weight, or nullptr.
  const SafetensorsFile* Find(const std::string& name) const;
  // The file that says which weights there are.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> file_of_;
};

// By file, which weights a model.safetensors.index.json says it has. InvalidArgument says what is wrong.
absl::StatusOr<std::map<std::string, std::vector<std::string>>> ParseWeightIndex(absl::string_view json);

// One of the files that weights are written to: those with the numbers [begin, end).
struct WeightFile {
  std::string name = {};
  size_t begin = 0, end = 0;
};
// How weights are divided: into one file, or, where they are more than `max_file_bytes`, into files of at most that
// size, but at least one weight each.
std::vector<WeightFile> CutIntoFiles(std::span<const NamedInfo> weights, uint64_t max_file_bytes);
// The index of several files, and where it is written.
std::string WeightIndexJson(std::span<const NamedInfo> weights, std::span<const WeightFile> files);
inline constexpr char kWeightIndex[] = "model.safetensors.index.json";
// No model has more files: reading refuses them.
inline constexpr size_t kMaxWeightFiles = 10'000;

// Writes the weights as one file, or, where they are more than `max_file_bytes`, as files of at most that size (but at
// least one weight each) with an index. Each file appears whole or not at all. What an earlier checkpoint in the same
// folder left, and the new one does not have, is removed. `bytes_of` as for WriteSafetensors().
absl::Status WriteWeightFiles(Env& env, const std::string& folder, std::span<const NamedInfo> weights,
                              uint64_t max_file_bytes, const BytesOfTensor& bytes_of);

}  // namespace tdock::model
