#include "trainer/run_log/tensorboard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

// The reflected table of CRC-32C's polynomial 0x1edc6f41.
constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}

// TFRecord stores checksums rotated and shifted, so that data which holds checksums does not upset them.
uint32_t MaskedCrc(absl::string_view data) { return std::rotr(Crc32c(data), 15) + 0xa282ead8u; }

// The bytes of an integer, least significant first.
template <class Word>
void AppendLittleEndian(std::string& out, Word word) {
  for (size_t i = 0; i < sizeof(Word); ++i) out.push_back(static_cast<char>(word >> (8 * i)));
}

// Protobuf's encoding: https://protobuf.dev/programming-guides/encoding/.
enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void AppendVarint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

void AppendKey(std::string& out, uint64_t field, WireType type) { AppendVarint(out, field << 3 | type); }

void AppendBytes(std::string& out, uint64_t field, absl::string_view bytes) {
  AppendKey(out, field, kBytes);
  AppendVarint(out, bytes.size());
  out.append(bytes.data(), bytes.size());
}

// Fields of tensorflow.Event and of what it holds (tensorflow/core/util/event.proto, framework/summary.proto).
enum EventField : uint64_t { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum SessionLogField : uint64_t { kStatus = 1 };
constexpr uint64_t kSessionStart = 1;
enum SummaryField : uint64_t { kValue = 1 };
enum ValueField : uint64_t { kTag = 1, kSimpleValue = 2 };

std::string BeginEvent(absl::Time now) {
  std::string event;
  AppendKey(event, kWallTime, kFixed64);
  AppendLittleEndian(event, std::bit_cast<uint64_t>(absl::ToDoubleSeconds(now - absl::UnixEpoch())));
  return event;
}

// The greatest number of seconds in the names of the event files of `folder`; nothing if it has none.
absl::StatusOr<std::optional<int64_t>> LastSeconds(Env& env, const std::string& folder) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.List(folder));
  std::optional<int64_t> last;
  for (absl::string_view name : names) {
    int64_t seconds = 0;
    if (absl::ConsumePrefix(&name, kEventFilePrefix) && absl::SimpleAtoi(name.substr(0, name.find('.')), &seconds)) {
      last = std::max(last.value_or(seconds), seconds);
    }
  }
  return last;
}

}  // namespace

uint32_t Crc32c(absl::string_view data) {
  static constexpr std::array<uint32_t, 256> kTable = MakeCrcTable();
  uint32_t crc = ~0u;
  for (char c : data) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

absl::StatusOr<std::unique_ptr<TensorBoardWriter>> TensorBoardWriter::Create(Env& env, const std::string& folder,
                                                                             absl::string_view host, absl::Time now,
                                                                             int64_t first_step) {
  TDOCK_RETURN_IF_ERROR(env.CreateFolders(folder));
  TDOCK_ASSIGN_OR_RETURN(const std::optional<int64_t> last, LastSeconds(env, folder));
  int64_t seconds = absl::ToUnixSeconds(now);
  if (last.has_value()) seconds = std::max(seconds, *last + 1);
  const std::string path = JoinPath(folder, absl::StrCat(kEventFilePrefix, seconds, ".", host));
  TDOCK_ASSIGN_OR_RETURN(auto file, env.OpenForWriting(path, WriteMode::kAppend));
  auto writer = std::unique_ptr<TensorBoardWriter>(new TensorBoardWriter(path, std::move(file)));
  std::string event = BeginEvent(now);
  AppendBytes(event, kFileVersion, "brain.Event:2");
  TDOCK_RETURN_IF_ERROR(writer->AppendRecord(event));
  if (last.has_value()) TDOCK_RETURN_IF_ERROR(writer->WriteRestart(first_step, now));
  return writer;
}

absl::Status TensorBoardWriter::WriteScalars(int64_t step, const std::map<std::string, double>& values,
                                             absl::Time now) {
  std::string summary;
  for (const auto& [tag, value] : values) {
    std::string entry;
    AppendBytes(entry, kTag, tag);
    AppendKey(entry, kSimpleValue, kFixed32);
    AppendLittleEndian(entry, std::bit_cast<uint32_t>(static_cast<float>(value)));
    AppendBytes(summary, kValue, entry);
  }
  std::string event = BeginEvent(now);
  AppendKey(event, kStep, kVarint);
  AppendVarint(event, static_cast<uint64_t>(step));
  AppendBytes(event, kSummary, summary);
  return AppendRecord(event);
}

absl::Status TensorBoardWriter::WriteRestart(int64_t step, absl::Time now) {
  std::string log;
  AppendKey(log, kStatus, kVarint);
  AppendVarint(log, kSessionStart);
  std::string event = BeginEvent(now);
  AppendKey(event, kStep, kVarint);
  AppendVarint(event, static_cast<uint64_t>(step));
  AppendBytes(event, kSessionLog, log);
  return AppendRecord(event);
}

absl::Status TensorBoardWriter::Sync() { return failed_.ok() ? file_->Sync() : failed_; }

absl::Status TensorBoardWriter::AppendRecord(absl::string_view event) {
  TDOCK_RETURN_IF_ERROR(failed_);
  std::string record;
  AppendLittleEndian(record, static_cast<uint64_t>(event.size()));
  AppendLittleEndian(record, MaskedCrc(record));
  record.append(event.data(), event.size());
  AppendLittleEndian(record, MaskedCrc(event));
  failed_ = file_->Append(record);
  return failed_;
}

}  // namespace tdock::trainer
