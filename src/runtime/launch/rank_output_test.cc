#include "runtime/launch/rank_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tdock::runtime {
namespace {

using testing::ElementsAre;

struct Part {
  std::string bytes;
  absl::Duration at = absl::ZeroDuration();
};

std::vector<std::string> Lines(const std::vector<Part>& parts) {
  std::vector<std::string> lines;
  const auto add = [&](absl::string_view line) { lines.emplace_back(line); };
  LineSplitter splitter;
  for (const Part& part : parts) splitter.Add(part.bytes, absl::UnixEpoch() + part.at, add);
  splitter.Finish(add);
  return lines;
}

TEST(LineSplitter, FindsLinesHoweverTheyArrive) {
  EXPECT_THAT(Lines({{"a\nb"}, {"c\n"}, {"\n"}, {"last"}}), ElementsAre("a", "bc", "", "last"));
  EXPECT_THAT(Lines({{"a\r"}, {"\nb\r\n"}}), ElementsAre("a", "b"));
  EXPECT_THAT(Lines({{""}}), ElementsAre());
  const std::string garbage("\xff\0\x1b", 3);
  EXPECT_THAT(Lines({{garbage + "\n"}}), ElementsAre(garbage));
}

TEST(LineSplitter, CutsLongLines) {
  const std::string longest(LineSplitter::kLongest, 'x');
  EXPECT_THAT(Lines({{longest + "\n"}}), ElementsAre(longest));
  EXPECT_THAT(Lines({{longest + "yz"}, {"\nb\n"}}), ElementsAre(longest, "yz", "b"));
  EXPECT_THAT(Lines({{longest}, {longest + "y\n"}}), ElementsAre(longest, longest, "y"));
}

TEST(LineSplitter, ShowsWhatIsOverwrittenNowAndThen) {
  EXPECT_THAT(Lines({{"1%\r2%\r", absl::ZeroDuration()},
                     {"3%\r", absl::Seconds(5)},
                     {"4%", absl::Seconds(9)},
                     {"\r5%", absl::Seconds(11)},
                     {"\r100%\r\ndone\n", absl::Seconds(12)}}),
              ElementsAre("1%", "4%", "100%", "done"));
}

// A pipe with its reading end.
struct Pipe {
  Pipe() {
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    EXPECT_EQ(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
  }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  std::string Read() const {
    std::string text;
    std::array<char, 4096> bytes;
    for (ssize_t got = 0; (got = read(ends[0], bytes.data(), bytes.size())) > 0;) {
      text.append(bytes.data(), static_cast<size_t>(got));
    }
    return text;
  }
  std::array<int, 2> ends = {};
};

TEST(PatientOutput, KeepsWhatNobodyReadsYet) {
  const Pipe pipe;
  PatientOutput output(pipe.ends[1]);
  std::string sent;
  while (!output.full()) {
    output.Add("line\n");
    sent += "line\n";
  }
  EXPECT_GE(output.Watched().fd, 0);
  std::string got;
  while (!output.empty()) {
    got += pipe.Read();
    output.Write();
  }
  EXPECT_TRUE(got + pipe.Read() == sent);
  EXPECT_EQ(output.Watched().fd, -1);
}

TEST(PatientOutput, DropsWhatNobodyWillRead) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  PatientOutput output(full);
  output.Add("line\n");
  EXPECT_FALSE(output.status().ok());
  EXPECT_TRUE(output.empty());
  output.Add("line\n");
  EXPECT_TRUE(output.empty());
  close(full);
}

TEST(RankOutput, PrefixesLinesAndKeepsTheLast) {
  const Pipe out_pipe, err_pipe;
  PatientOutput out(out_pipe.ends[1]), err(err_pipe.ends[1]);
  RankOutput output("[rank 1] ", out, err, nullptr);
  for (int i = 0; i < 25; ++i) output.AddOut(absl::StrCat("line ", i, "\n"), absl::UnixEpoch());
  output.AddErr("bad\t\"\x01\xff", absl::UnixEpoch());
  output.Finish();
  EXPECT_THAT(out_pipe.Read(), testing::StartsWith("[rank 1] line 0\n[rank 1] line 1\n"));
  EXPECT_EQ(err_pipe.Read(), "[rank 1] bad\t\"\x01\xff\n");
  EXPECT_EQ(output.last_lines().size(), 20U);
  EXPECT_EQ(output.last_lines().front(), "line 6");
  EXPECT_EQ(output.last_lines().back(), "bad\t\"\\x01\uFFFD");
}

class FullFile final : public WritableFile {
 public:
  absl::Status Append(absl::string_view) override { return absl::UnavailableError("rank-0.log: no space left"); }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status Close() override { return absl::OkStatus(); }
};

TEST(RankOutput, SaysOnceThatALogIsFull) {
  const Pipe out_pipe, err_pipe;
  PatientOutput out(out_pipe.ends[1]), err(err_pipe.ends[1]);
  RankOutput output("[rank 0] ", out, err, std::make_unique<FullFile>());
  output.AddOut("a\nb\n", absl::UnixEpoch());
  EXPECT_EQ(out_pipe.Read(), "[rank 0] a\n[rank 0] b\n");
  const std::string said = err_pipe.Read();
  EXPECT_THAT(said, testing::HasSubstr("rank-0.log: no space"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

TEST(RankOutput, PassesBytesOnWhereThereIsOneRank) {
  const Pipe out_pipe;
  PatientOutput out(out_pipe.ends[1]);
  RankOutput output("", out, out, nullptr);
  output.AddOut("50%\r", absl::UnixEpoch());
  EXPECT_EQ(out_pipe.Read(), "50%\r");
}

}  // namespace
}  // namespace tdock::runtime
