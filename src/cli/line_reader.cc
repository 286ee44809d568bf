#include "cli/line_reader.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::cli {

absl::StatusOr<LineReader> LineReader::Open(Env& env, const std::string& path, size_t max_line_bytes) {
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, env.OpenForReading(path));
  return LineReader(std::move(file), path, max_line_bytes);
}

absl::StatusOr<std::optional<absl::string_view>> LineReader::Next() {
  constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
  size_t searched = begin_;
  for (;;) {
    const size_t newline = buffer_.find('\n', searched);
    const size_t end = newline == std::string::npos ? buffer_.size() : newline;
    if (end - begin_ > max_line_bytes_) {
      return absl::InvalidArgumentError(absl::StrCat(EscapeUnprintable(path_), ":", number_ + 1,
                                                     ": the line has more than ", max_line_bytes_, " bytes"));
    }
    const bool all_read = offset_ == file_->size();
    if (newline != std::string::npos || (all_read && end > begin_)) {
      const absl::string_view line = absl::string_view(buffer_).substr(begin_, end - begin_);
      is_ended_ = newline != std::string::npos;
      begin_ = end + (is_ended_ ? 1 : 0);
      line_end_ = offset_ - (buffer_.size() - begin_);
      ++number_;
      return line;
    }
    if (all_read) return std::nullopt;
    buffer_.erase(0, begin_);
    begin_ = 0;
    searched = buffer_.size();
    const uint64_t more = std::min(kPieceBytes, file_->size() - offset_);
    buffer_.resize(searched + more);
    TDOCK_RETURN_IF_ERROR(file_->ReadAt(offset_, std::span(buffer_).subspan(searched)));
    offset_ += more;
  }
}

void LineReader::Rewind() {
  buffer_.clear();
  begin_ = 0;
  offset_ = line_end_ = 0;
  number_ = 0;
  is_ended_ = true;
}

std::string LineReader::Place() const { return absl::StrCat(EscapeUnprintable(path_), ":", number_); }

}  // namespace tdock::cli
