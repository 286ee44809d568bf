// Puts texts together within the limits of a render. Internal to this module.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "text/jinja/meter.h"
#include "text/jinja/text.h"

namespace tdock::jinja {

// Once a limit is exceeded, it appends nothing more, and the meter remembers. Not thread-safe.
class TextBuilder {
 public:
  explicit TextBuilder(Meter& meter) : meter_(meter) {}

  bool ok() const { return !meter_.failed(); }
  void Append(absl::string_view bytes, Source source = {}) {
    if (Grow(bytes.size())) text_.Append(bytes, source);
  }
  void Append(const Text& text) { Append(text, 0, text.size()); }
  void Append(const Text& text, size_t begin, size_t end) {
    if (begin < end && Grow(end - begin)) text_.Append(text, begin, end);
  }
  void AppendTimes(absl::string_view bytes, int64_t times, Source source = {}) {
    if (times <= 0 || bytes.empty()) return;
    const auto count = static_cast<size_t>(std::min(times, int64_t{1} << 40));
    if (!meter_.SpendBytes(count * bytes.size()) || !meter_.MayHold(text_.size() + count * bytes.size())) return;
    std::string repeated;
    repeated.reserve(count * bytes.size());
    for (size_t i = 0; i < count; ++i) repeated.append(bytes.data(), bytes.size());
    text_.Append(repeated, source);
  }
  const Text& text() const { return text_; }
  Text Take() { return std::move(text_); }

 private:
  bool Grow(size_t bytes) {
    spent_ += bytes + 1;
    if (spent_ < 1024) return ok();
    const size_t spent = spent_;
    spent_ = 0;
    return meter_.SpendBytes(spent) && meter_.MayHold(text_.memory_bytes() + bytes);
  }

  Meter& meter_;
  Text text_;
  size_t spent_ = 0;
};

}  // namespace tdock::jinja
