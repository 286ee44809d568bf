#include "core/base/limited_env.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock {
namespace {

class LimitedFile final : public WritableFile {
 public:
  LimitedFile(std::string path, std::unique_ptr<WritableFile> file, std::atomic<int64_t>& left)
      : path_(std::move(path)), file_(std::move(file)), left_(left) {}

  absl::Status Append(absl::string_view data) override {
    const int64_t size = static_cast<int64_t>(data.size());
    const int64_t before = left_.fetch_sub(size);
    if (before >= size) return file_->Append(data);
    left_ = 0;
    TDOCK_RETURN_IF_ERROR(file_->Append(data.substr(0, static_cast<size_t>(std::max<int64_t>(before, 0)))));
    return absl::ResourceExhaustedError(absl::StrCat("cannot write to ", path_, ": No space left on device"));
  }
  absl::Status Sync() override { return file_->Sync(); }
  absl::Status Close() override { return file_->Close(); }

 private:
  const std::string path_;
  const std::unique_ptr<WritableFile> file_;
  std::atomic<int64_t>& left_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WritableFile>> LimitedEnv::OpenForWriting(const std::string& path, WriteMode mode) {
  TDOCK_ASSIGN_OR_RETURN(auto file, base_.OpenForWriting(path, mode));
  return std::make_unique<LimitedFile>(path, std::move(file), left_);
}

}  // namespace tdock
