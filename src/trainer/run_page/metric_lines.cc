#include "trainer/run_page/metric_lines.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tdock::trainer {
namespace {

namespace dom = simdjson::dom;

// False if it has no step.
bool TakeObject(const dom::object& object, LineReader::Taker& taker) {
  int64_t step = 0;
  if (object["step"].get(step) != simdjson::SUCCESS) return false;
  std::string_view phase;
  if (object["phase"].get(phase) != simdjson::SUCCESS) phase = {};
  taker.Begin(step, absl::string_view(phase.data(), phase.size()));
  for (const auto& [key, element] : object) {
    if (key == "step" || key == "phase") continue;
    const absl::string_view name(key.data(), key.size());
    double number = std::nan("");
    std::string_view text;
    if (element.is_null() || element.get(number) == simdjson::SUCCESS) {
      taker.Number(name, number);
    } else if (element.get(text) == simdjson::SUCCESS) {
      taker.Text(name, absl::string_view(text.data(), text.size()));
    }
  }
  taker.End();
  return true;
}

}  // namespace

struct LineReader::Parser {
  dom::parser parser;
};

LineReader::LineReader() : parser_(std::make_unique<Parser>()) {}
LineReader::~LineReader() = default;

int64_t LineReader::Read(std::string lines, Taker& taker) {
  const size_t size = lines.size();
  lines.append(simdjson::SIMDJSON_PADDING, '\0');
  int64_t unreadable = 0;
  for (size_t begin = 0; begin < size;) {
    const size_t end = std::min(lines.find('\n', begin), size);
    dom::object object;
    const bool is_object =
        parser_->parser.parse(lines.data() + begin, end - begin, false).get(object) == simdjson::SUCCESS;
    if (!is_object || !TakeObject(object, taker)) ++unreadable;
    begin = end + 1;
  }
  return unreadable;
}

}  // namespace tdock::trainer
