// Whatever a template is, it renders within its limits or fails, ends where it is stopped, its text is UTF-8, and its
// runs cover the text.
#include <cstdint>
#include <cstdlib>
#include <string>
#include "core/base/json_text.h"

#include "core/base/testing/hostile_text.h"
#include "core/base/utf8.h"
#include "text/jinja/template.h"

namespace tdock::jinja {
namespace {

void CheckRuns(const std::vector<Run>& runs, const std::string& text) {
  size_t end = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].end <= end || (i > 0 && runs[i].value == runs[i - 1].value)) std::abort();
    if (FindInvalidUtf8(text.substr(end, runs[i].end - end))) std::abort();
    end = runs[i].end;
  }
  if (end != text.size()) std::abort();
}

Template::Inputs SomeInputs() {
  const auto json = tdock::ReadOrderedJson(R"({"s": " Žlu ", "n": 3, "messages": [{"role": "user", "content": "hé"},
      {"role": "assistant", "content": null, "tool_calls": [{"x": [1, 2.5]}]}]})");
  Template::Inputs inputs;
  for (const auto& [name, value] : json.items()) inputs.emplace_back(name, FromJson(value, 1).value());
  return inputs;
}

}  // namespace
}  // namespace tdock::jinja

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::jinja;
  static const Template::Inputs inputs = SomeInputs();
  constexpr size_t kMostOutput = 1 << 16;
  const std::string source(reinterpret_cast<const char*>(data), size);
  const auto parsed = Template::Parse(source, {.steps = 20'000, .memory_bytes = 1 << 20, .output_bytes = kMostOutput});
  tdock::CheckMessage(parsed.status());
  if (!parsed.ok()) return 0;
  int64_t polls = 0;
  const auto rendered = parsed->Render(inputs, {.stop = [&polls] { return ++polls, absl::OkStatus(); }});
  // Where it is stopped, and where it may put out less, it fails by that, or not at all.
  const auto stopped = parsed->Render(inputs, {.stop = [left = polls / 2]() mutable {
                                        return left-- > 0 ? absl::OkStatus() : absl::CancelledError("enough");
                                      }});
  if (polls > 0 && stopped.status() != absl::CancelledError("enough")) std::abort();
  tdock::CheckMessage(rendered.status());
  if (!rendered.ok()) return 0;
  const size_t less = rendered->text.size() / 2;
  const auto shorter = parsed->Render(inputs, {.output_bytes = less});
  if (!rendered->text.empty() && shorter.ok()) std::abort();
  if (rendered->text.size() > kMostOutput || tdock::FindInvalidUtf8(rendered->text)) std::abort();
  CheckRuns(rendered->origins, rendered->text);
  CheckRuns(rendered->marks, rendered->text);
  for (const Range range : rendered->generations) {
    if (range.begin >= range.end || range.end > rendered->text.size()) std::abort();
  }
  return 0;
}
