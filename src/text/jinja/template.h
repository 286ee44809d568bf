// Models' chat templates, run as transformers runs them: Jinja with blocks trimmed (trim_blocks, lstrip_blocks), loop
// controls, {% generation %}, and the globals and filters of its sandbox.
//
// Templates come from folders of models, which nobody need trust: a render has no access to anything but its inputs,
// and bounds on its time, memory and output. Each character that it puts out is known to come from the template or
// from an input, whatever filters it went through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

struct Limits {
  int64_t steps = 10'000'000;      // of one render: expressions computed, items visited, each 64 bytes made
  int depth = 100;                 // of nested blocks and expressions, and of calls of macros
  size_t memory_bytes = 64 << 20;  // held at one time by one render
  size_t output_bytes = 16 << 20;  // of one render
  size_t source_bytes = 4 << 20;
};

struct RenderOptions {
  absl::Time now = absl::UnixEpoch();  // what strftime_now shows
  absl::TimeZone time_zone = absl::UTCTimeZone();
  // The less of this and Limits::output_bytes counts.
  size_t output_bytes = std::numeric_limits<size_t>::max();
  // Polled with the first step and every few thousand; its error ends the render and is returned as it is.
  StopCheck stop = {};
};

// The bytes from the end of the run before up to `end`. Adjacent runs differ.
struct Run {
  size_t end;
  int32_t value;

  friend bool operator==(const Run&, const Run&) = default;
};

struct Range {
  size_t begin;
  size_t end;

  friend bool operator==(const Range&, const Range&) = default;
};

struct Rendered {
  std::string text;                // UTF-8
  std::vector<Run> origins;        // of all of the text
  std::vector<Run> marks;          // of all of the text; -1: what no loop over marked dicts put out
  std::vector<Range> generations;  // what {% generation %} blocks put out, in order, none of them empty
};

struct Program;  // internal

// Immutable, and so thread-safe; cheap to copy.
class Template {
 public:
  // InvalidArgument, with the line, for what is no template, and for what exceeds a limit. Unimplemented, with the line
  // and the construct, for what chat templates have no use for: other templates (extends, include, import), and random
  // text.
  static absl::StatusOr<Template> Parse(absl::string_view source, const Limits& limits = {});

  using Inputs = std::vector<std::pair<std::string, Value>>;

  // InvalidArgument, with the line, for what a template does that it may not or cannot; where it calls raise_exception,
  // the message is exactly the one that it gives. ResourceExhausted, with the line, for what exceeds a limit.
  absl::StatusOr<Rendered> Render(const Inputs& inputs, const RenderOptions& options = {}) const;

  // Whether it has a {% generation %} block.
  bool marks_generation() const;
  // Whether it reads a variable of this name that it may get from outside, such as "tools" or "strftime_now".
  bool uses(absl::string_view name) const;

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
};

}  // namespace tdock::jinja
