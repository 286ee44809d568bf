// A data set: files of records, the meaning of their columns, and the samples of a phase.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "data/adapter.h"
#include "data/encode.h"
#include "data/record_file.h"
#include "data/sample.h"
#include "data/source.h"

namespace tdock::data {

// A file of a data set.
struct DataFile {
  std::string path;
  Format format = Format::kJsonLines;
  std::unique_ptr<RecordFile> records;
};

// Opens files, each of `format` or, without one, of the format that its name tells. InvalidArgument if they have no
// records. Other errors are those of FormatOfPath() and OpenRecordFile().
absl::StatusOr<std::vector<DataFile>> OpenDataFiles(Env& env, std::span<const std::string> paths,
                                                    std::optional<Format> format, const RecordLimits& limits = {});

// The records of several files, one file after the other. Thread-safe.
class Dataset final : public Source<Sample> {
 public:
  // InvalidArgument if the adapter has no column for what the phase needs; or if no record of a file has one of the
  // columns: which there are, and which key names another. `limits` are those that the files were opened with.
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(std::vector<DataFile> files, const Adapter& adapter, Phase phase,
                                                       const RecordLimits& limits = {});

  // The same for files that are to be opened.
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(Env& env, std::span<const std::string> paths,
                                                       std::optional<Format> format, const Adapter& adapter,
                                                       Phase phase, const RecordLimits& limits = {});

  int64_t size() const override { return begins_.back(); }
  std::vector<absl::StatusOr<OrSkip<Sample>>> Load(std::span<const int64_t> indexes) const override;
  text::ContentHash content() const override { return content_; }

  // The position of record `index`: "path:line".
  std::string Place(int64_t index) const;

  const Adapter& adapter() const { return adapter_; }

 private:
  Dataset(Adapter adapter, Phase phase) : adapter_(std::move(adapter)), phase_(phase) {}

  // Where a file has what ColumnsOf() names.
  struct Columns {
    std::vector<std::string> names;
    std::vector<std::vector<std::string>> inside;  // of ColumnPath
    size_t read = 0;                               // how many of `names` there are before those of Adapter::unread
  };

  size_t FileOf(int64_t index) const;
  absl::StatusOr<Columns> FindColumns(const DataFile& file, const std::vector<std::string>& wanted) const;
  void AddUnread(const DataFile& file, Columns& columns) const;
  absl::StatusOr<Sample> SampleOf(Record record, const Columns& columns) const;

  const Adapter adapter_;
  const Phase phase_;
  std::vector<DataFile> files_;
  std::vector<Columns> columns_;       // of each file
  std::vector<int64_t> begins_ = {0};  // of each file's records, and after the last
  text::ContentHash content_;
};

// The samples of a data set as tokens. Thread-safe, except for CountParts().
class EncodedDataset final : public Source<EncodedSample> {
 public:
  // `samples` must outlive it. `tokenizer_content` is the hash of the tokenizer's files; see TokenizerContent().
  // `place` names the position of a record that cannot be encoded.
  EncodedDataset(const Source<Sample>& samples, SampleEncoder encoder, const text::ContentHash& tokenizer_content,
                 std::function<std::string(int64_t)> place);

  // Finds out how many samples each record makes, with so many threads, which reads and renders all records unless
  // each makes one. Until then, each has its first. They stand in the order of their records, and those of one record
  // in the order of SampleEncoder::Parts(). Takes 8 bytes of memory for each record where one makes several.
  void CountParts(int threads);
  bool makes_parts() const { return encoder_.makes_parts(); }

  int64_t records() const { return samples_.size(); }
  int64_t size() const override { return begins_.empty() ? records() : begins_.back(); }
  std::vector<absl::StatusOr<OrSkip<EncodedSample>>> Load(std::span<const int64_t> indexes) const override;
  bool BeginsRecord(int64_t index) const override { return PartOf(index) == 0; }
  text::ContentHash content() const override { return content_; }

 private:
  int64_t RecordOf(int64_t index) const;
  // Its number among the samples of its record.
  int64_t PartOf(int64_t index) const;

  const Source<Sample>& samples_;
  const SampleEncoder encoder_;
  const std::function<std::string(int64_t)> place_;
  std::vector<int64_t> begins_;  // of each record's samples, and after the last; empty: each makes one
  text::ContentHash content_;
};

// The hash of the files in `folder` that a tokenizer is read from. NotFound if there are none.
absl::StatusOr<text::ContentHash> TokenizerContent(Env& env, const std::string& folder);

// The files of a split, such as "train", of a local data set. `path` is a file, which is the only split; or a folder,
// which holds files (or a folder `data` with files) whose names begin with the split's, up to a dot, a dash or an
// underscore. "eval", "test" and "validation" stand for each other, in this order. NotFound says which files there are,
// and where there is nothing at `path`, what MissingFile() does.
absl::StatusOr<std::vector<std::string>> FindSplit(Env& env, const std::string& path, const std::string& split);

// The folder of the cache of huggingface_hub: $HF_HUB_CACHE, else $HF_HOME/hub, else $HOME/.cache/huggingface/hub;
// empty where none of these is set. `variable` gives a variable of the environment, as std::getenv does.
std::string DefaultHubCache(const std::function<const char*(const char*)>& variable);

// The folder in which the Python package huggingface_hub keeps the data set `name` ("owner/name"), of the revision
// that "main" was. `hub` is the folder of its cache. NotFound where it is not there: nothing is downloaded.
absl::StatusOr<std::string> FindInHubCache(Env& env, const std::string& hub, absl::string_view name);

}  // namespace tdock::data
