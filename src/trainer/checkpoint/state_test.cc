#include "trainer/checkpoint/state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

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
  at::Tensor into = at::zeros({2, 3}, at::kBFloat16), one = at::zeros({}, at::kDouble);
  ASSERT_EQ(read.CopyTensor("halves", into), absl::OkStatus());
  ASSERT_EQ(read.CopyTensor("scalar", one), absl::OkStatus());
  EXPECT_TRUE(at::equal(into, halves));
  EXPECT_TRUE(at::equal(one, scalar));
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
  state.SetTensor("two", at::zeros({2}));
  EXPECT_THAT(state.Integer("word").status(), Fails(absl::StatusCode::kInvalidArgument, {"word", "'three'"}));
  EXPECT_THAT(state.Number("word").status(), Fails(absl::StatusCode::kInvalidArgument, {"word", "'three'"}));
  EXPECT_THAT(state.CopyTensor("two", at::zeros({3})),
              Fails(absl::StatusCode::kInvalidArgument, {"two is Float [2], not Float [3]"}));
  EXPECT_THAT(state.CopyTensor("two", at::zeros({2}, at::kDouble)),
              Fails(absl::StatusCode::kInvalidArgument, {"two", "Double"}));
  EXPECT_THAT(state.CopyTensor("three", at::zeros({2})), Fails(absl::StatusCode::kInvalidArgument, {"missing"}));
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
