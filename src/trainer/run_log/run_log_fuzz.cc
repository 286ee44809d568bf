// Logs of a run from outside: no text of them becomes markup of the page, and the table has as many fields in each row.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "trainer/run_log/metrics_csv.h"
#include "trainer/run_log/report.h"

namespace tdock::trainer {
namespace {

int64_t Tags(const std::string& page) { return std::count(page.begin(), page.end(), '<'); }

// Whether every row of RFC 4180's CSV has as many fields as the first.
bool IsTable(const std::string& csv) {
  int64_t expected = -1, fields = 1;
  bool quoted = false;
  for (const char c : csv) {
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == ',') ++fields;
    if (c != '\n') continue;
    if (expected < 0) expected = fields;
    if (fields != expected) return false;
    fields = 1;
  }
  return !quoted && csv.ends_with("\r\n");
}

}  // namespace
}  // namespace tdock::trainer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::trainer;
  static const int64_t tags = Tags(RenderReport({}, {}));
  const std::string input(reinterpret_cast<const char*>(data), size);
  const ReportHead head{.title = input, .problem = input};
  const std::string page = RenderReport(head, {.config_yaml = input, .metrics_jsonl = input, .samples_jsonl = input});
  if (Tags(page) != tags || !IsTable(MetricsCsv(input))) std::abort();
  return 0;
}
