// Images and videos, once for each prompt.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "tdock/compat/mindspeed.h"

namespace tdock {
namespace {

using Columns = std::vector<std::string>;

const Columns kColumns = {"image",        "pixel_values", "image_grid_thw", "image_shape", "labels",    "vit_embeds",
                          "position_ids", "image_num",    "video",          "video_shape", "video_fps", "video_num"};

Columns ColumnsOf(absl::string_view consumer, bool reuse_image_embeds) {
  const Columns pixels = {"pixel_values", "image_grid_thw", "image_num", "video_num"};
  const Columns embeds = {"vit_embeds", "image_grid_thw", "image_num", "video_num"};
  if (consumer == "rule_reward") return {"labels"};
  if (consumer == "dynamic_sampling") return pixels;
  if (consumer == "actor_image_embeds") return reuse_image_embeds ? pixels : Columns();
  if (consumer == "actor_log_prob" || consumer == "ref_log_prob" || consumer == "actor_train") {
    return reuse_image_embeds ? embeds : pixels;
  }
  if (consumer != "actor_rollout") return {};
  if (reuse_image_embeds) return embeds;
  return {"image", "image_shape", "image_num", "video", "video_shape", "video_fps", "video_num"};
}

bool IsPerPrompt(absl::string_view name) { return name == "image_num" || name == "video_num" || name == "video_fps"; }

// One number for each row, as a column of rows of one number. The rates of several videos are unchanged.
absl::StatusOr<Column> AsRowsOfOne(absl::string_view name, const Column& column) {
  TDOCK_ASSIGN_OR_RETURN(const int64_t item, ItemBytes(ColumnType::Dense(column.type().dtype)));
  bool one_each = column.type().kind != ColumnKind::kBytes && column.payload_bytes() == column.rows() * item;
  for (int64_t row = 0; row < column.rows() && column.type().kind == ColumnKind::kRagged; ++row) {
    one_each = one_each && column.Length(row) == 1;
  }
  if (one_each)
    return Column::MakeDense(column.type().dtype, {1}, column.rows(), Buffer::CopyOf(column.PayloadBytes()));
  if (name == "video_fps" && column.type().kind == ColumnKind::kRagged) return column;
  return absl::InvalidArgumentError(absl::StrCat("column '", EscapeForMessage(name),
                                                 "' must hold one number for each prompt; it holds ",
                                                 ToString(column.type())));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MultimodalDock>> MultimodalDock::Make(std::shared_ptr<Dock> dock,
                                                                     const std::string& partition, int64_t prompts_num,
                                                                     int64_t n_samples_per_prompt,
                                                                     bool reuse_image_embeds, absl::Duration timeout) {
  if (n_samples_per_prompt < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("n_samples_per_prompt is ", n_samples_per_prompt, "; it must be at least 1"));
  }
  MindSpeedOptions options = TransferDock(prompts_num, 1, kColumns);
  options.partition = partition;
  options.timeout = timeout;
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<MindSpeedDock> rows, MakeMindSpeedDock(std::move(dock), options));
  return std::unique_ptr<MultimodalDock>(new MultimodalDock(std::move(rows), n_samples_per_prompt, reuse_image_embeds));
}

absl::Status MultimodalDock::PutExperience(const Batch& batch, const std::vector<int64_t>& prompts) {
  return dock_->PutExperience(batch, prompts);
}

absl::StatusOr<Batch> MultimodalDock::GetExperience(const std::vector<std::string>& columns,
                                                    const std::vector<int64_t>& indexes, bool get_n_samples) {
  std::vector<int64_t> prompts;
  for (size_t i = 0; i < indexes.size(); i += get_n_samples ? static_cast<size_t>(n_) : 1) {
    // Rounded down, so that what is below 0 stays below.
    prompts.push_back(indexes[i] < 0 ? -1 : indexes[i] / n_);
  }
  TDOCK_ASSIGN_OR_RETURN(const Batch rows, dock_->Get(columns, prompts));
  Batch batch;
  for (const NamedColumn& column : rows.columns()) {
    TDOCK_RETURN_IF_ERROR(
        batch.Add(column.name, IsPerPrompt(column.name) ? AsRowsOfOne(column.name, column.column) : column.column));
  }
  return batch;
}

absl::StatusOr<std::vector<std::string>> MultimodalDock::GetColumns(absl::string_view consumer) {
  std::vector<std::string> columns = ColumnsOf(consumer, reuse_image_embeds_);
  TDOCK_ASSIGN_OR_RETURN(const auto ready, dock_->GetExperienceStatus());
  for (const std::string& name : columns) {
    const std::vector<bool>& cells = ready.at(name);
    if (std::find(cells.begin(), cells.end(), true) == cells.end()) return std::vector<std::string>();
  }
  return columns;
}

absl::Status MultimodalDock::Clear() { return dock_->ClearIndexes(); }

}  // namespace tdock
