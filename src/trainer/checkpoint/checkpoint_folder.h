// The folder with the checkpoints of a run.
//
//   step-000050/              after step 50
//     manifest.json           which files there are, and their checksums; written last
//     state.json, state.safetensors, …    whatever the caller writes
//   step-000050-01/           in step 51, the first time that a run was stopped there
//   .step-000100/             being written, or left by a process that was killed while it wrote
//
// manifest.json is
//
//   {"format": "transfer-dock checkpoint", "version": 2, "manifest_xxh3": "0123456789abcdef", "step": 50, "part": 0,
//    "saved": "2026-11-23T20:15:00+00:00", "metrics": {"val/accuracy": 0.5},
//    "files": {"state.json": {"bytes": 1234, "xxh3": "0123456789abcdef"}, …}}
//
// with the paths of files relative to the folder, and xxh3 the XXH3 of 64 bits, without a seed, in 16 hexadecimal
// digits. manifest_xxh3 is that of the bytes of manifest.json itself, in which its 16 digits are zeros. Version 1 has
// none.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/env.h"

namespace tdock::trainer {

// Where in a run a checkpoint is.
struct CheckpointPlace {
  int64_t step = 0;  // the last that was completed
  int64_t part = 0;  // 0: right after it; else how often a run was stopped in the next one

  auto operator<=>(const CheckpointPlace&) const = default;
};
std::string ToText(const CheckpointPlace& place);  // "step 50"

struct Manifest {
  struct File {
    uint64_t bytes = 0;
    uint64_t checksum = 0;
  };
  bool has_checksum = false;  // of its own; those of version 1 have none
  CheckpointPlace place;
  absl::Time saved;
  std::map<std::string, double> metrics;  // of the validation after this step, if there was one
  std::map<std::string, File> files;      // by path
};

// The size and the checksum of a file. InvalidArgument for anything but a regular file.
absl::StatusOr<Manifest::File> MeasureFile(Env& env, const std::string& path);

// InvalidArgument says what is wrong with it, as another content than its checksum is of; FailedPrecondition if a newer
// version of the format wrote it.
absl::StatusOr<Manifest> ParseManifest(absl::string_view json);
std::string ManifestJson(const Manifest& manifest);

// The manifest of a checkpoint. NotFound if the folder has none; otherwise as ParseManifest().
absl::StatusOr<Manifest> ReadManifest(Env& env, const std::string& folder);

// The manifest of a checkpoint whose files are all as it says, so that nothing else is read. NotFound if the folder has
// none; DataLoss names a file that is missing, shorter, changed or not listed, or says what is wrong with the manifest.
// Hidden files, which no reader looks for, need not be listed. FailedPrecondition as ParseManifest().
absl::StatusOr<Manifest> VerifyCheckpoint(Env& env, const std::string& folder);

// Of the bytes of a checkpoint's manifest, and so of everything in one that has been verified. NotFound if the folder
// has no manifest.
absl::StatusOr<std::string> ManifestChecksum(Env& env, const std::string& folder);

// Not thread-safe, and for one process at a time; Write() may be called by another thread while nothing else is.
class CheckpointFolder {
 public:
  // The folder need not exist. `env` must outlive it.
  CheckpointFolder(Env& env, std::string path) : env_(env), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string PathOf(const CheckpointPlace& place) const;

  // Those that are complete, as far as names tell, the oldest first.
  absl::StatusOr<std::vector<CheckpointPlace>> List() const;

  // Removes what a killed process was writing, and gives back what it was replacing.
  absl::Status RemoveUnfinished();

  // Calls `write` with an empty folder to write files into, and makes that a checkpoint, which appears whole or not at
  // all and survives a power failure. `place`, `saved` and `metrics` of `head` go into the manifest. One of the same
  // place is replaced. After an error nothing is left.
  absl::Status Write(const Manifest& head, const std::function<absl::Status(const std::string& folder)>& write);

  absl::Status Remove(const CheckpointPlace& place);

 private:
  Env& env_;
  const std::string path_;
};

}  // namespace tdock::trainer
