#include "trainer/run_log/sample_data.h"

#include <string>

namespace tdock::trainer {
namespace {

constexpr size_t kMostTextBytes = 4000;

// Shortened between characters, not within one.
std::string Shortened(std::string text) {
  if (text.size() <= kMostTextBytes) return text;
  size_t end = kMostTextBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + " …";
}

}  // namespace

LogRecord SampleData(const LogRecord& record) {
  const auto reward = record.find("reward");
  const auto correct = record.find("correct");
  return {{"phase", TextOf(record, "phase")},
          {"step", record["step"]},
          {"prompt", Shortened(TextOf(record, "prompt"))},
          {"response", Shortened(TextOf(record, "response"))},
          {"truth", Shortened(TextOf(record, "truth"))},
          {"message", Shortened(TextOf(record, "message"))},
          {"reward", reward != record.end() && reward->is_number() ? *reward : LogRecord()},
          {"correct", correct != record.end() && correct->is_boolean() ? *correct : LogRecord()}};
}

}  // namespace tdock::trainer
