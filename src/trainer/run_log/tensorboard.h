// Event files that TensorBoard reads: TFRecord framing around hand-encoded `Event` protobufs that hold scalars.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/env.h"

namespace tdock::trainer {

// CRC-32C (Castagnoli, RFC 3720 appendix B.4).
uint32_t Crc32c(absl::string_view data);

// What the names of event files begin with.
constexpr absl::string_view kEventFilePrefix = "events.out.tfevents.";

// One event file. Not thread-safe. Each record is appended whole; after a failed write, every later one fails with the
// same error.
class TensorBoardWriter {
 public:
  // Creates events.out.tfevents.<seconds>.<host> in `folder`, which is created if it is missing. Where there are event
  // files already, this one follows them: its seconds are greater, because readers go by the order of names, and it
  // begins with the mark of a restart, at which a TensorBoard that is watching forgets what it had read of `first_step`
  // and later.
  static absl::StatusOr<std::unique_ptr<TensorBoardWriter>> Create(Env& env, const std::string& folder,
                                                                   absl::string_view host, absl::Time now,
                                                                   int64_t first_step);

  // TensorBoard keeps scalars as 32-bit floats.
  absl::Status WriteScalars(int64_t step, const std::map<std::string, double>& values, absl::Time now);

  absl::Status Sync();

  const std::string& path() const { return path_; }

 private:
  TensorBoardWriter(std::string path, std::unique_ptr<WritableFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  absl::Status WriteRestart(int64_t step, absl::Time now);
  absl::Status AppendRecord(absl::string_view event);

  const std::string path_;
  const std::unique_ptr<WritableFile> file_;
  absl::Status failed_;
};

}  // namespace tdock::trainer
