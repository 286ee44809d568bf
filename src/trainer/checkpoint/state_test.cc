#include "trainer/checkpoint/state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "trainer/checkpoint/state_files.h"

namespace tdock::trainer {
namespace {

class Counter final : public Stateful {
 public:
  int64_t count = 0;
  void Save(State& state) const override { state.SetInteger("count", count); }
  absl::Status Load(const State& state) override {
    TDOCK_ASSIGN_OR_RETURN(count, state.Integer("count"));
    return absl::OkStatus();
  }
};

State WrittenAndRead(const State& state, const std::string& name) {
  const std::string folder = JoinPath(testing::TempDir(), name);
  EXPECT_TRUE(Env::Real().CreateFolders(folder).ok());
  EXPECT_EQ(WriteState(Env::Real(), folder, state), absl::OkStatus());
  auto read = ReadState(Env::Real(), folder);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? *std::move(read) : State();
}

TEST(State, ComesBackFromFilesToTheBit) {
  State state;
  const double odd = 0.1 + 0.2, infinite = std::numeric_limits<double>::infinity();
  state.SetNumber("odd", odd);
  state.SetNumber("infinite", infinite);
  state.SetInteger("least", std::numeric_limits<int64_t>::min());
  state.SetText("text", "two\nlines, \"quoted\"");
  const at::Tensor halves = at::arange(6, at::kBFloat16).view({2, 3}), scalar = at::scalar_tensor(7.5, at::kDouble);
  state.SetTensor("halves", halves);
  state.SetTensor("scalar", scalar);
  state.SetTensor("bytes", at::arange(5, at::kByte));

  const State read = WrittenAndRead(state, "exact");
  EXPECT_EQ(*read.Number("odd"), odd);
  EXPECT_EQ(*read.Number("infinite"), infinite);
  EXPECT_EQ(*read.Integer("least"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(*read.Text("text"), "two\nlines, \"quoted\"");
  EXPECT_TRUE(at::equal(read.tensors().at("halves"), halves));
  EXPECT_TRUE(at::equal(read.tensors().at("scalar"), scalar));
}

TEST(State, KeepsObjectsApartByTheirPrefix) {
  Counter one, two;
  one.count = 1, two.count = 2;
  State state;
  state.Set("a", one);
  state.Set("a/b", two);
  Counter first, second;
  ASSERT_EQ(state.Get("a", first), absl::OkStatus());
  ASSERT_EQ(state.Get("a/b", second), absl::OkStatus());
  EXPECT_EQ(first.count, 1);
  EXPECT_EQ(second.count, 2);
  EXPECT_THAT(state.Get("c", first), Fails(absl::StatusCode::kInvalidArgument, {"c: count is missing"}));
}

TEST(State, NamesWhatDoesNotFit) {
  State state;
  state.SetText("word", "three");
  EXPECT_THAT(state.Integer("word").status(), Fails(absl::StatusCode::kInvalidArgument, {"word", "'three'"}));
  EXPECT_THAT(state.Number("word").status(), Fails(absl::StatusCode::kInvalidArgument, {"word", "'three'"}));
}

TEST(State, ASnapshotDoesNotChangeWithTheTensors) {
  const at::Tensor weights = at::zeros({4});
  State state;
  state.SetTensor("weights", weights);
  const State snapshot = state.Snapshot();
  weights.fill_(1);
  EXPECT_TRUE(at::equal(snapshot.tensors().at("weights"), at::zeros({4})));
  EXPECT_TRUE(at::equal(state.tensors().at("weights"), at::ones({4})));
  EXPECT_EQ(snapshot.tensor_bytes(), 16);
}

TEST(State, PartsArePutTogetherHoweverTheyAreCut) {
  const at::Tensor all = at::arange(10, at::kFloat);
  State state;
  state.SetPart("x", 8, 10, all.narrow(0, 8, 2));
  state.SetPart("x", 0, 10, all.narrow(0, 0, 3));
  state.SetPart("x", 3, 10, all.narrow(0, 3, 5));
  state.SetTensor("whole", all.view({2, 5}));
  for (const char* name : {"x", "whole"}) {
    for (int64_t begin = 0; begin < 10; ++begin) {
      for (int64_t size = 0; begin + size <= 10; ++size) {
        const at::Tensor into = at::zeros({size});
        ASSERT_EQ(state.CopyPart(name, begin, 10, into), absl::OkStatus()) << begin << " " << size;
        EXPECT_TRUE(at::equal(into, all.narrow(0, begin, size)));
      }
    }
  }
  const at::Tensor matrix = at::zeros({5, 2});
  ASSERT_EQ(state.CopyPart("x", 0, 10, matrix), absl::OkStatus());
  EXPECT_TRUE(at::equal(matrix.view({-1}), all));
}

TEST(State, PartsThatDoNotFitAreRefused) {
  const auto error_of = [](const std::vector<std::pair<std::string, int64_t>>& parts) {
    State state;
    for (const auto& [name, size] : parts) state.SetTensor(name, at::zeros({size}));
    return state.CopyPart("x", 0, 10, at::zeros({10}));
  };
  const auto refused = [](const std::string& why) { return Fails(absl::StatusCode::kInvalidArgument, {"x", why}); };
  EXPECT_THAT(error_of({}), refused("missing"));
  EXPECT_THAT(error_of({{"x[0/10]", 4}, {"x[5/10]", 5}}), refused("[4, 5) of 10"));
  EXPECT_THAT(error_of({{"x[0/10]", 4}, {"x[4/10]", 5}}), refused("[9, 10) of 10"));
  EXPECT_THAT(error_of({{"x[0/10]", 4}, {"x[3/10]", 7}}), refused("x[0/10] and x[3/10] overlap"));
  EXPECT_THAT(error_of({{"x[0/10]", 10}, {"x[2/10]", 3}}), refused("x[0/10] and x[2/10] overlap"));
  EXPECT_THAT(error_of({{"x", 10}, {"x[4/10]", 6}}), refused("x and x[4/10] overlap"));
  EXPECT_THAT(error_of({{"x", 10}, {"x[0/10]", 10}}), refused("overlap"));
  EXPECT_EQ(error_of({{"x[0/10]", 4}, {"x[2/10]", 0}, {"x[4/10]", 6}}), absl::OkStatus());
  EXPECT_THAT(error_of({{"x", 9}}), refused("9 numbers, not 10"));
  for (const char* name : {"x[0/11]", "x[-1/10]", "x[1/10]", "x[9223372036854775807/10]", "x[0/10", "x[]", "x[0]",
                           "x[a/10]", "x[99999999999999999999/10]"}) {
    EXPECT_THAT(error_of({{name, 10}}), refused(std::string(name).substr(1))) << name;
  }
  State doubles;
  doubles.SetPart("x", 0, 10, at::zeros({10}, at::kDouble));
  EXPECT_THAT(doubles.CopyPart("x", 0, 10, at::zeros({10})), refused("Double"));
}

class RankFilesTest : public testing::Test {
 protected:
  RankFilesTest() : folder_(JoinPath(testing::TempDir(), absl::StrCat("rank_files_", getpid()))) {
    EXPECT_TRUE(Env::Real().RemoveAll(folder_).ok());
    EXPECT_TRUE(Env::Real().CreateFolders(folder_).ok());
    State first = PartOf(0);
    first.SetText("only", "of rank 0");
    EXPECT_TRUE(WriteState(Env::Real(), folder_, first).ok());
  }
  ~RankFilesTest() override { Env::Real().RemoveAll(folder_).IgnoreError(); }
  static State PartOf(int rank, int64_t step = 7) {
    State state;
    state.SetInteger("step", step);
    state.SetPart("x", 2 * rank, 6, at::full({2}, rank, at::kFloat));
    return state;
  }
  void Write(int rank, int ranks, const State& state) {
    ASSERT_EQ(WriteRankState(Env::Real(), folder_, rank, ranks, state), absl::OkStatus());
  }
  absl::Status Error() { return ReadState(Env::Real(), folder_).status(); }

  const std::string folder_;
};

TEST_F(RankFilesTest, AreReadTogether) {
  Write(1, 3, PartOf(1));
  Write(2, 3, PartOf(2));
  const absl::StatusOr<State> state = ReadState(Env::Real(), folder_);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(*state->Text("only"), "of rank 0");
  const at::Tensor all = at::zeros({6});
  ASSERT_EQ(state->CopyPart("x", 0, 6, all), absl::OkStatus());
  EXPECT_TRUE(at::equal(all, at::tensor({0.0F, 0.0F, 1.0F, 1.0F, 2.0F, 2.0F})));
}

TEST_F(RankFilesTest, OneThatIsMissingIsNamed) {
  Write(2, 3, PartOf(2));
  EXPECT_THAT(Error(), Fails(absl::StatusCode::kInvalidArgument, {"3 ranks", "rank 1", "state-rank-1-of-3"}));
}

TEST_F(RankFilesTest, OneThatLacksItsTextsOrItsTensorsIsNamed) {
  Write(1, 2, PartOf(1));
  for (const char* lost : {"state-rank-1-of-2.safetensors", "state-rank-1-of-2.json"}) {
    const std::string path = JoinPath(folder_, lost);
    const absl::StatusOr<std::string> bytes = Env::Real().ReadFile(path);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    ASSERT_TRUE(Env::Real().Remove(path).ok());
    EXPECT_THAT(Error(), Fails(absl::StatusCode::kInvalidArgument, {"2 ranks", "rank 1", lost}));
    ASSERT_TRUE(WriteFileAtomically(Env::Real(), path, *bytes).ok());
  }
  EXPECT_EQ(Error(), absl::OkStatus());
}

TEST_F(RankFilesTest, AFileOfARankThatTheOthersDoNotKnowOfIsNamed) {
  const std::string stray = JoinPath(folder_, "state-rank-3-of-4.safetensors");
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), stray, "").ok());
  EXPECT_THAT(Error(), Fails(absl::StatusCode::kInvalidArgument, {"4 ranks", "rank 1", "state-rank-1-of-4.json"}));
  Write(1, 2, PartOf(1));
  EXPECT_THAT(Error(), Fails(absl::StatusCode::kInvalidArgument,
                             {"different saves", "state-rank-1-of-2", "state-rank-3-of-4.safetensors"}));
}

TEST_F(RankFilesTest, OneOfAnotherMomentIsRefused) {
  Write(1, 2, PartOf(1, /*step=*/8));
  EXPECT_THAT(Error(), Fails(absl::StatusCode::kInvalidArgument, {"state-rank-1-of-2", "'step' is 8, not 7"}));
}

TEST_F(RankFilesTest, ThoseOfDifferentSavesAreRefused) {
  Write(1, 2, PartOf(1));
  Write(2, 3, PartOf(2));
  EXPECT_THAT(Error(), Fails(absl::StatusCode::kInvalidArgument, {"different saves"}));
}

TEST(StateFiles, RefuseWhatIsNotAState) {
  const std::string folder = JoinPath(testing::TempDir(), "not_a_state");
  ASSERT_TRUE(Env::Real().RemoveAll(folder).ok());
  ASSERT_TRUE(Env::Real().CreateFolders(folder).ok());
  const std::string path = JoinPath(folder, "state.json");
  EXPECT_THAT(ReadState(Env::Real(), folder).status(), Fails(absl::StatusCode::kNotFound, {path}));
  for (const char* text : {"", "[]", R"({"a": 1})", R"({"a": {"b": "c"}})", R"({"a": "1", "a": "2"})"}) {
    ASSERT_TRUE(WriteFileAtomically(Env::Real(), path, text).ok());
    EXPECT_THAT(ReadState(Env::Real(), folder).status(), Fails(absl::StatusCode::kInvalidArgument, {path})) << text;
  }
}

}  // namespace
}  // namespace tdock::trainer
