#include "runtime/dispatch/method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "core/base/testing/fails.h"
#include "runtime/dispatch/method_table.h"
#include "runtime/dispatch/worker_group.h"

namespace tdock::runtime {
namespace {

using Code = absl::StatusCode;

constexpr Method<MetaBatch(MetaBatch)> kScore{"score", Mode::kDpComputeProto};
constexpr Method<PerRank<double>(MetaBatch)> kLoss{"loss", Mode::kDpComputeMetric};
constexpr Method<PerRank<std::string>(int64_t, std::vector<double>)> kSetUp{"set_up", Mode::kOneToAll};
constexpr Method<void(PerRank<int64_t>)> kSeed{"seed", Mode::kDpCompute};
constexpr Method<int64_t(bool)> kStep{"step", Mode::kOneToAll, Execute::kRankZero};

// What compiles.
template <class M, class F>
concept Servable = requires(MethodTable table, const M& method, F function) { table.Serve(method, function); };
template <class M, class... A>
concept Callable = requires(const WorkerGroup& group, const M& method, A... arguments) {
  group.Call(method, arguments...);
  group.Start(method, arguments...);
};

using Score = Method<MetaBatch(MetaBatch)>;
using Loss = Method<PerRank<double>(MetaBatch)>;
using SetUp = Method<PerRank<std::string>(int64_t, std::vector<double>)>;
using Seed = Method<void(PerRank<int64_t>)>;

static_assert(Servable<Score, MetaBatch (*)(MetaBatch)>);
static_assert(Servable<Score, absl::StatusOr<MetaBatch> (*)(const MetaBatch&)>);
static_assert(Servable<Score, absl::StatusOr<RowsRef> (*)(MetaBatch)>);
static_assert(!Servable<Score, MetaBatch (*)()>);
static_assert(!Servable<Score, MetaBatch (*)(MetaBatch, MetaBatch)>);
static_assert(!Servable<Score, MetaBatch (*)(RowsRef)>);
static_assert(!Servable<Score, double (*)(MetaBatch)>);
static_assert(!Servable<Score, void (*)(MetaBatch)>);
static_assert(Servable<Loss, double (*)(MetaBatch)>);
static_assert(!Servable<Loss, std::vector<double> (*)(MetaBatch)>);
static_assert(!Servable<Loss, float (*)(MetaBatch)>);
static_assert(!Servable<Loss, RowsRef (*)(MetaBatch)>);
static_assert(Servable<SetUp, std::string (*)(int64_t, std::vector<double>)>);
static_assert(!Servable<SetUp, std::string (*)(double, std::vector<double>)>);
static_assert(Servable<Seed, void (*)(int64_t)>);
static_assert(Servable<Seed, absl::Status (*)(int64_t)>);
static_assert(!Servable<Seed, int (*)(int64_t)>);
static_assert(!Servable<Seed, void (*)(std::vector<int64_t>)>);

static_assert(Callable<Score, MetaBatch>);
static_assert(Callable<Score, RowsRef>);
static_assert(Callable<Score, Future<MetaBatch>>);
static_assert(Callable<Score, Future<RowsRef>>);
static_assert(!Callable<Score>);
static_assert(!Callable<Score, MetaBatch, MetaBatch>);
static_assert(!Callable<Score, std::string>);
static_assert(!Callable<Score, Future<double>>);
static_assert(!Callable<Score, Future<void>>);
static_assert(Callable<SetUp, int, std::vector<double>>);
static_assert(!Callable<SetUp, double, std::vector<double>>);
static_assert(!Callable<SetUp, bool, std::string>);
static_assert(Callable<Seed, std::vector<int64_t>>);
static_assert(!Callable<Seed, int64_t>);

static_assert(std::same_as<Outcome<ControllerSide<PerRank<double>>>, absl::StatusOr<std::vector<double>>>);
static_assert(std::same_as<decltype(std::declval<WorkerGroup>().Call(kSeed, std::vector<int64_t>())), absl::Status>);

TEST(Method, FitsItsMode) {
  using signature::ArgumentFits;
  using signature::ResultFits;
  EXPECT_TRUE(ArgumentFits<MetaBatch>(ArgumentRule::kRows));
  EXPECT_TRUE(ArgumentFits<RowsRef>(ArgumentRule::kRows));
  EXPECT_FALSE(ArgumentFits<int64_t>(ArgumentRule::kRows));
  EXPECT_FALSE(ArgumentFits<PerRank<MetaBatch>>(ArgumentRule::kRows));
  EXPECT_TRUE(ArgumentFits<PerRank<MetaBatch>>(ArgumentRule::kElements));
  EXPECT_FALSE(ArgumentFits<MetaBatch>(ArgumentRule::kElements));
  EXPECT_FALSE(ArgumentFits<std::vector<double>>(ArgumentRule::kSpread));
  EXPECT_TRUE(ArgumentFits<PerRank<double>>(ArgumentRule::kSpread));
  EXPECT_FALSE(ArgumentFits<PerRank<double>>(ArgumentRule::kReplicated));
  EXPECT_TRUE(ResultFits<MetaBatch>(true));
  EXPECT_FALSE(ResultFits<double>(true));
  EXPECT_FALSE(ResultFits<double>(false));
  EXPECT_TRUE(ResultFits<PerRank<double>>(false));
  EXPECT_TRUE(ResultFits<void>(true) && ResultFits<void>(false));
  EXPECT_EQ(kScore.spec().dispatch.mode, Mode::kDpComputeProto);
  EXPECT_EQ(kScore.spec().execute, Execute::kAll);
  EXPECT_EQ(kStep.spec().execute, Execute::kRankZero);
}

class MethodTableTest : public testing::Test {
 protected:
  absl::StatusOr<Value> Call(absl::string_view name, std::vector<Value> arguments) {
    return table_.Call(name, std::move(arguments), absl::InfiniteFuture());
  }
  MethodTable table_;
};

TEST_F(MethodTableTest, ConvertsArgumentsAndResult) {
  ASSERT_TRUE(table_
                  .Serve(kSetUp,
                         [](int64_t n, const std::vector<double>& rates) {
                           return std::to_string(n) + "/" + std::to_string(rates.size());
                         })
                  .ok());
  EXPECT_EQ(*Call("set_up", {2, Value::List{0.5, 1.5}}), Value("2/2"));
  EXPECT_THAT(Call("set_up", {2, Value::List{0.5, 1}}).status(),
              Fails(Code::kInvalidArgument, {"argument 1", "element 1", "a double", "an int64"}));
  EXPECT_THAT(Call("set_up", {2}).status(), Fails(Code::kInvalidArgument, {"2 arguments", "given 1"}));
  EXPECT_THAT(Call("setup", {}).status(), Fails(Code::kNotFound, {"'setup'", "'set_up'"}));
}

TEST_F(MethodTableTest, PassesErrorsOnAndTurnsExceptionsIntoErrors) {
  ASSERT_TRUE(table_
                  .Serve(kSeed,
                         [](int64_t seed) -> absl::Status {
                           if (seed == 1) throw std::runtime_error("no memory");
                           return seed == 2 ? absl::AbortedError("two") : absl::OkStatus();
                         })
                  .ok());
  EXPECT_TRUE(Call("seed", {0})->IsNothing());
  EXPECT_THAT(Call("seed", {1}).status(), Fails(Code::kInternal, {"no memory"}));
  EXPECT_EQ(Call("seed", {2}).status(), absl::AbortedError("two"));
}

TEST_F(MethodTableTest, ServesAMethodOnceForEachRole) {
  const auto loss = [](const MetaBatch&) { return 0.5; };
  EXPECT_TRUE(table_.Serve(kLoss, loss).ok());
  EXPECT_TRUE(table_
                  .Serve(
                      kLoss, [](const MetaBatch&) { return 1.5; }, "critic")
                  .ok());
  EXPECT_THAT(table_.Serve(kLoss, loss, "critic"), Fails(Code::kAlreadyExists, {"'critic/loss'"}));
  EXPECT_EQ(*Call("loss", {MetaBatch()}), Value(0.5));
  EXPECT_EQ(*Call("critic/loss", {MetaBatch()}), Value(1.5));
}

TEST_F(MethodTableTest, FetchesRowsWhereABatchIsNeeded) {
  std::vector<uint64_t> fetched;
  table_ = MethodTable([&fetched](const RowsRef& rows, absl::Time) -> absl::StatusOr<MetaBatch> {
    fetched = rows.rows;
    Batch batch;
    EXPECT_TRUE(batch.Add("x", Column::FromValues(std::vector<float>(rows.rows.size()))).ok());
    return MetaBatch(batch);
  });
  ASSERT_TRUE(table_.Serve(kLoss, [](const MetaBatch& batch) { return static_cast<double>(batch.rows()); }).ok());
  EXPECT_EQ(*Call("loss", {RowsRef{.partition = "train", .rows = {4, 2}, .columns = {"x"}}}), Value(2.0));
  EXPECT_EQ(fetched, (std::vector<uint64_t>{4, 2}));
}

TEST_F(MethodTableTest, RefusesAResultThatIsTooDeep) {
  ASSERT_TRUE(table_
                  .ServeAny("deep",
                            [](const std::vector<Value>&, absl::Time) -> absl::StatusOr<Value> {
                              Value deep;
                              for (int i = 0; i < Value::kMaxDepth; ++i) deep = Value::List{deep};
                              return deep;
                            })
                  .ok());
  EXPECT_THAT(Call("deep", {}).status(), Fails(Code::kInvalidArgument, {"result is 65", "at most 64"}));
}

TEST(Value, SaysWhatItIsAndWhatWasExpected) {
  const Value value = Value::Object{{"lr", 1e-6}, {"layers", Value::List{1, 2}}};
  EXPECT_THAT(value.Get<double>().status(), Fails(Code::kInvalidArgument, {"a double", "object of 2"}));
  EXPECT_THAT(value.As<Value::Object>()->at("layers").Describe(), testing::EndsWith("list of 2"));
  EXPECT_EQ(*value.As<Value::Object>()->at("lr").Get<double>(), 1e-6);
  EXPECT_EQ(value.depth(), 3);
  EXPECT_EQ(Value().Describe(), "nothing");
  EXPECT_EQ(Value(true).Describe(), "a bool");
  EXPECT_THAT(Value("x").Get<int64_t>().status(), Fails(Code::kInvalidArgument, {"an int64", "a string"}));
  EXPECT_THAT(Value(MetaBatch()).Get<RowsRef>().status(),
              Fails(Code::kInvalidArgument, {"rows of", "batch of 0 rows"}));
}

TEST(Value, IsEqualInTypeAndValue) {
  EXPECT_EQ(Value(1), Value(int64_t{1}));
  EXPECT_FALSE(Value(1) == Value(1.0));
  EXPECT_EQ(Value(std::nan("")), Value(std::nan("")));
  EXPECT_EQ(Value(Value::List{1, "a"}), Value(Value::List{1, "a"}));
  EXPECT_FALSE(Value(Value::List{1, "a"}) == Value(Value::List{1, "b"}));
  EXPECT_EQ(ValueOf<std::optional<double>>::To(std::nullopt), Value());
  EXPECT_EQ(*ValueOf<std::optional<double>>::From(Value(0.5), {}), 0.5);
}

}  // namespace
}  // namespace tdock::runtime
