#include "trainer/stages/columns.h"

#include <map>
#include <string>

#include "core/base/status.h"

namespace tdock::trainer {

namespace {

std::map<std::string, ColumnType> Types() {
  return {{kPrompt, ColumnType::Ragged(DType::kI32)},
          {kInitialPrompt, ColumnType::Ragged(DType::kI32)},
          {kPromptText, ColumnType::Bytes()},
          {kMessages, ColumnType::Bytes()},
          {kTruth, ColumnType::Bytes()},
          {kSource, ColumnType::Bytes()},
          {kResponses, ColumnType::Ragged(DType::kI32)},
          {kResponseMask, ColumnType::Ragged(DType::kU8)},
          {kResponseText, ColumnType::Bytes()},
          {kFinished, ColumnType::Dense(DType::kU8)},
          {kRolloutLogProbs, ColumnType::Ragged(DType::kF32)},
          {kTrace, ColumnType::Bytes()},
          {kRewards, ColumnType::Dense(DType::kF32)},
          {kRewardBaselines, ColumnType::Dense(DType::kF32)},
          {kRefLogProb, ColumnType::Ragged(DType::kF32)},
          {kOldLogProbs, ColumnType::Ragged(DType::kF32)},
          {kValues, ColumnType::Ragged(DType::kF32)},
          {kAdvantages, ColumnType::Ragged(DType::kF32)},
          {kReturns, ColumnType::Ragged(DType::kF32)},
          {kMargin, ColumnType::Dense(DType::kF32)},
          {kComparedFrom, ColumnType::Dense(DType::kF32)}};
}

}  // namespace

bool IsStageColumn(absl::string_view name) { return Types().contains(std::string(name)); }

std::vector<ColumnSpec> ColumnsNamed(std::initializer_list<const char*> names) {
  const std::map<std::string, ColumnType> types = Types();
  std::vector<ColumnSpec> columns;
  for (const char* name : names) {
    const auto found = types.find(name);
    TDOCK_CHECK(found != types.end(), "a column that no stage knows needs a type of its own");
    columns.push_back({name, found->second});
  }
  return columns;
}

}  // namespace tdock::trainer
