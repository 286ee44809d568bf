// Lines of metrics.jsonl and timeline.jsonl, read fast: a run of 100,000 steps has hundreds of megabytes of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace tdock::trainer {

// Not thread-safe.
class LineReader {
 public:
  // Gets the members of each line that is a JSON object with a step. Texts are valid during the call.
  class Taker {
   public:
    virtual ~Taker() = default;
    virtual void Begin(int64_t step, absl::string_view phase) = 0;
    virtual void Number(absl::string_view name, double value) = 0;  // NaN for null
    virtual void Text(absl::string_view /*name*/, absl::string_view /*value*/) {}
    virtual void End() {}
  };

  LineReader();
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // Returns how many of the lines, each with its newline, are no such objects.
  int64_t Read(std::string lines, Taker& taker);

 private:
  struct Parser;
  const std::unique_ptr<Parser> parser_;
};

}  // namespace tdock::trainer
