#include "recorded.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "fault_fixture.h"

namespace tdock::fault {
namespace {

std::vector<int32_t> TokensOf(int64_t mark) {
  return std::vector<int32_t>(static_cast<size_t>(mark % 97),
                              static_cast<int32_t>(MixBits(static_cast<uint64_t>(mark))));
}

// Most fit into a message, and every eighth goes through shared memory.
std::string TextOf(int64_t mark) {
  const size_t bytes = mark % 8 == 0 ? 90'000 : static_cast<size_t>(mark % 1009);
  return std::string(bytes, static_cast<char>('a' + mark % 26));
}

// A line is written in one piece: what a process wrote before it was killed is there.
class Record {
 public:
  explicit Record(const std::string& file) : fd_(open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600)) {}
  ~Record() { close(fd_); }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  void Write(absl::string_view kind, const std::vector<int64_t>& marks) {
    Line(absl::StrCat(kind, " ", absl::StrJoin(marks, " ")));
  }
  void Wrong(const absl::Status& status) { Line(absl::StrCat("! ", status.ToString())); }

 private:
  void Line(const std::string& text) {
    const std::string line = absl::StrCat(text, "\n");
    if (write(fd_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) abort();
  }
  const int fd_;
};

// Nobody knows what came of the call.
bool IsUncertain(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}
// The lease or the session is over, as happens to those who are stopped or cut off.
bool IsOver(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsNotFound(status) || absl::IsAborted(status);
}

absl::Status Finish(Dock& dock, const Taken& taken, const std::vector<int64_t>& marks, bool publish) {
  if (!publish) return dock.Complete({.partition = kPartition, .lease = taken.lease});
  FillRequest put{
      .partition = kPartition, .rows = {taken.rows.ids().begin(), taken.rows.ids().end()}, .lease = taken.lease};
  const std::vector<float> scores(marks.size(), 1.0f);
  TDOCK_RETURN_IF_ERROR(put.batch.Add("score", Column::FromValues<float>(scores)));
  return dock.Fill(put);
}

}  // namespace

absl::Status CreateRecorded(Dock& dock) {
  PartitionOptions partition = Columns();
  partition.columns.push_back({"score", ColumnType::Dense(DType::kF32)});
  partition.retain_for = {kConsumer};
  partition.max_rows = 200;
  return CreateAll(dock, {.writes = {"score"}, .max_deliveries = 1'000'000}, partition);
}

Batch RecordedBatch(const std::vector<int64_t>& marks) {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::string> texts;
  for (int64_t mark : marks) {
    tokens.push_back(TokensOf(mark));
    texts.push_back(TextOf(mark));
  }
  Batch batch;
  EXPECT_EQ(batch.Add("mark", Column::FromValues<int64_t>(marks)), absl::OkStatus());
  EXPECT_EQ(batch.Add("tokens", Column::FromRows<int32_t>(tokens)), absl::OkStatus());
  EXPECT_EQ(batch.Add("text", Column::FromStrings(texts)), absl::OkStatus());
  return batch;
}

absl::StatusOr<std::vector<int64_t>> MarksOf(const Rows& rows) {
  std::vector<int64_t> marks;
  TDOCK_ASSIGN_OR_RETURN(const Batch batch, rows.ToBatch());
  TDOCK_ASSIGN_OR_RETURN(const auto values, batch.Values<int64_t>("mark"));
  for (size_t row = 0; row < rows.size(); ++row) {
    const int64_t mark = values[row];
    TDOCK_ASSIGN_OR_RETURN(const auto tokens, batch.Row<int32_t>("tokens", static_cast<int64_t>(row)));
    const std::span<const std::byte> text = batch.Find("text")->RowBytes(static_cast<int64_t>(row));
    const std::vector<int32_t> right_tokens = TokensOf(mark);
    const std::string right_text = TextOf(mark);
    const bool intact = std::equal(tokens.begin(), tokens.end(), right_tokens.begin(), right_tokens.end()) &&
                        text.size() == right_text.size() &&
                        std::memcmp(text.data(), right_text.data(), text.size()) == 0;
    if (!intact) return absl::DataLossError(absl::StrCat("row ", rows.ids()[row], " with mark ", mark, " is damaged"));
    marks.push_back(mark);
  }
  return marks;
}

absl::Status ProduceRecorded(Dock& dock, const std::string& file, int64_t first) {
  Record record(file);
  Rng rng(static_cast<uint64_t>(first));
  for (int64_t next = first;;) {
    std::vector<int64_t> marks;
    for (uint64_t rows = 1 + rng.Below(8); rows > 0; --rows) marks.push_back(next++);
    record.Write("? put", marks);
    const absl::Status status =
        dock.Put({.partition = kPartition, .batch = RecordedBatch(marks), .deadline = absl::Now() + absl::Seconds(1)})
            .status();
    if (status.ok()) {
      record.Write("+ put", marks);
    } else if (!IsUncertain(status) && !IsOver(status)) {
      record.Wrong(status);
      return status;
    }
    absl::SleepFor(absl::Microseconds(rng.Below(3000)));
  }
}

absl::Status ConsumeRecorded(Dock& dock, const std::string& file, uint64_t seed) {
  Record record(file);
  Rng rng(seed);
  std::deque<Rows> views;
  for (;;) {
    const absl::StatusOr<Taken> taken = dock.Take({.partition = kPartition,
                                                   .consumer = kConsumer,
                                                   .max = static_cast<int64_t>(1 + rng.Below(8)),
                                                   .deadline = absl::Now() + absl::Milliseconds(300)});
    if (!taken.ok()) {
      if (IsUncertain(taken.status()) || IsOver(taken.status())) continue;
      record.Wrong(taken.status());
      return taken.status();
    }
    const absl::StatusOr<std::vector<int64_t>> marks = MarksOf(taken->rows);
    if (!marks.ok()) {
      record.Wrong(marks.status());
      return marks.status();
    }
    // Looked at for longer than the rows are there.
    views.push_back(taken->rows);
    if (views.size() > 20) views.pop_front();
    const uint64_t what = rng.Below(10);
    if (what < 2) {
      dock.Release({.partition = kPartition, .lease = taken->lease}).IgnoreError();
      continue;
    }
    if (what < 4) absl::SleepFor(absl::Milliseconds(rng.Below(40)));
    record.Write("? done", *marks);
    const absl::Status status = Finish(dock, *taken, *marks, what < 6);
    if (status.ok()) {
      record.Write("+ done", *marks);
    } else if (IsOver(status)) {
      record.Write("- done", *marks);
    } else if (!IsUncertain(status)) {
      record.Wrong(status);
      return status;
    }
  }
}

void Recorded::Read(const std::string& file) {
  std::ifstream lines(file);
  // Of the last call, which has no answer yet.
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string sign, what;
    words >> sign >> what;
    std::vector<int64_t> marks;
    for (int64_t mark = 0; words >> mark;) marks.push_back(mark);
    for (int64_t mark : marks) {
      if (what == "put") (sign == "+" ? put : intended).insert(mark);
      if (what != "done") continue;
      if (sign == "?") maybe_done.insert(mark);
      if (sign == "+") ++done[mark];
    }
    if (sign == "!") wrong.push_back(line);
  }
}

}  // namespace tdock::fault
