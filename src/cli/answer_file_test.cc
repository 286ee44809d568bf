#include "cli/answer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <vector>

#include "core/base/testing/fails.h"

namespace tdock::cli {
namespace {

using Json = nlohmann::ordered_json;

class AnswerFileTest : public testing::Test {
 protected:
  AnswerFileTest() {
    EXPECT_TRUE(env_.RemoveAll(folder_).ok());
    EXPECT_TRUE(env_.CreateFolders(folder_).ok());
  }

  auto Open(const Json& made_with, bool overwrite = false) {
    return AnswerFile::Open(env_, {.path = path_, .overwrite = overwrite, .lines = 3, .samples = 2}, made_with);
  }
  absl::Status Refused(const Json& made_with) { return Open(made_with).status(); }
  std::string Contents() { return env_.ReadFile(path_).value(); }
  void Write(const std::string& contents) { ASSERT_TRUE(WriteFileAtomically(env_, path_, contents).ok()); }

  Env& env_ = Env::Real();
  const std::string folder_ =
      testing::TempDir() + "/answer_file_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string path_ = JoinPath(folder_, "answers.jsonl");
  const Json made_with_ = {{"seed", 1}, {"model", "m"}};
};

TEST_F(AnswerFileTest, GoesOnBehindTheLastWholeLine) {
  const std::string whole = "{\"line\":2,\"sample\":1}\n{\"line\":1,\"sample\":0}\n";
  ASSERT_TRUE((*Open(made_with_))->Close().ok());
  Write(whole + "{\"line\":3,\"sam");
  const auto file = Open(made_with_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->found(), 2);
  for (int64_t line = 1; line <= 3; ++line) {
    for (int64_t sample = 0; sample < 2; ++sample) {
      EXPECT_EQ((*file)->Has(line, sample), (line == 2 && sample == 1) || (line == 1 && sample == 0));
    }
  }
  EXPECT_EQ(Contents(), whole);
  ASSERT_TRUE((*file)->Append("{}").ok());
  EXPECT_EQ(Contents(), whole + "{}\n");
}

TEST_F(AnswerFileTest, OfOneAnswerToEachLineShowsThoseThatAreThere) {
  ASSERT_TRUE(Open(made_with_).ok());
  // A name that is the input's.
  Write("{\"line\":2,\"n\":5}\n{\"line\":1,\"sample\":9,\"n\":7}\n{\"line\":3,");
  std::vector<int> found;
  const auto open = [&](int most) {
    found.clear();
    const auto on_found = [&](const Json& answer) {
      found.push_back(answer["n"].get<int>());
      return found.back() <= most ? absl::OkStatus() : absl::DataLossError("too much");
    };
    return AnswerFile::Open(env_, {.path = path_, .lines = 3, .numbered = false, .on_found = on_found}, made_with_)
        .status();
  };
  EXPECT_TRUE(open(9).ok());
  EXPECT_EQ(found, (std::vector{5, 7}));
  EXPECT_THAT(open(6), Fails(absl::StatusCode::kDataLoss, {path_ + ":2: ", "too much"}));
  EXPECT_THAT(Open(made_with_).status(), Fails(absl::StatusCode::kDataLoss, {path_ + ":1: ", "--overwrite"}));
}

TEST_F(AnswerFileTest, RefusesWhatWasMadeOtherwise) {
  ASSERT_TRUE(Open(made_with_).ok());
  Write("{\"line\":1,\"sample\":0}\n");
  EXPECT_THAT(Refused({{"seed", 2}, {"model", "m"}}),
              Fails(absl::StatusCode::kFailedPrecondition, {path_, "seed was 1 ", "is 2 ", "--overwrite"}));
  EXPECT_THAT(Refused({{"seed", 1}, {"top_k", 3}}),
              Fails(absl::StatusCode::kFailedPrecondition,
                    {path_, "top_k was nothing ", "is 3 ", "model was \\\"m\\\"", "is nothing"}));
  EXPECT_TRUE(Open(made_with_).ok());
}

TEST_F(AnswerFileTest, RefusesAFileThatIsNotItsOwn) {
  Write("precious");
  EXPECT_THAT(Refused(made_with_),
              Fails(absl::StatusCode::kFailedPrecondition, {path_ + " ", path_ + ".state.json", "--overwrite"}));
  ASSERT_TRUE(WriteFileAtomically(env_, path_ + ".state.json", absl::string_view("[1]")).ok());
  EXPECT_THAT(Refused(made_with_),
              Fails(absl::StatusCode::kDataLoss, {path_ + ".state.json", "an object", "--overwrite"}));
  EXPECT_EQ(Contents(), "precious");
}

TEST_F(AnswerFileTest, RefusesLinesThatAreNoAnswers) {
  ASSERT_TRUE(Open(made_with_).ok());
  for (const char* line : {"{", "1", "{\"line\":1}", "{\"line\":4,\"sample\":0}", "{\"line\":1,\"sample\":2}",
                           "{\"line\":0,\"sample\":0}"}) {
    Write(std::string("{\"line\":1,\"sample\":0}\n") + line + "\n");
    EXPECT_THAT(Refused(made_with_), Fails(absl::StatusCode::kDataLoss, {path_ + ":2: ", "an answer", "--overwrite"}))
        << line;
  }
  Write("{\"line\":1,\"sample\":0}\n{\"line\":1,\"sample\":0}\n");
  EXPECT_THAT(Refused(made_with_), Fails(absl::StatusCode::kDataLoss, {path_ + ":2: ", "answer 0", "line 1"}));
}

TEST_F(AnswerFileTest, IsOfOneWriterAtATime) {
  auto first = Open(made_with_);
  ASSERT_TRUE(first.ok()) << first.status();
  for (const bool overwrite : {false, true}) {
    const absl::Status second = Open(made_with_, overwrite).status();
    EXPECT_THAT(second, Fails(absl::StatusCode::kAlreadyExists, {"another process", path_, "--output"}));
  }
  ASSERT_TRUE((*first)->Append("{}").ok());
  EXPECT_EQ(Contents(), "{}\n");
  first->reset();
  EXPECT_TRUE(Open(made_with_, /*overwrite=*/true).ok());
}

TEST_F(AnswerFileTest, ReplacesNothingButRegularFiles) {
  const std::string fifo = JoinPath(folder_, "fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, folder_, std::string("/dev/null")}) {
    const auto refused = AnswerFile::Open(env_, {.path = path, .overwrite = true, .lines = 1}, made_with_).status();
    EXPECT_THAT(refused, Fails(absl::StatusCode::kInvalidArgument, {path}));
    EXPECT_TRUE(env_.Exists(path));
    EXPECT_FALSE(env_.Exists(path + ".lock"));
  }
}

TEST_F(AnswerFileTest, TellsWhatItWasMadeWith) {
  EXPECT_EQ(AnswerFile::MadeWith(env_, path_), std::nullopt);
  ASSERT_TRUE(Open(made_with_).ok());
  EXPECT_EQ(AnswerFile::MadeWith(env_, path_), made_with_);
  ASSERT_TRUE(env_.Remove(path_).ok());
  EXPECT_EQ(AnswerFile::MadeWith(env_, path_), std::nullopt);
}

TEST_F(AnswerFileTest, BeginsAnewIfAsked) {
  Write("precious");
  ASSERT_TRUE(Open(made_with_, /*overwrite=*/true).ok());
  EXPECT_EQ(Contents(), "");
  EXPECT_TRUE(Open(made_with_).ok());
}

}  // namespace
}  // namespace tdock::cli
