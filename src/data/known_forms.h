// The forms of data sets that are known by their columns.
#pragma once

#include "absl/status/statusor.h"
#include "data/adapter.h"
#include "data/record_file.h"

namespace tdock::data {

// The adapter for a file, by the names of its columns and by what its first hundred records hold. The columns that
// `given` names stand for those that would be found. Its name is that of the form, such as "alpaca".
//
// InvalidArgument with the columns and the known forms, if these are not the columns of one; or UnreadColumn().
absl::StatusOr<Adapter> RecogniseForm(const RecordFile& file, const Adapter& given);

// The error for a record with content in one of Adapter::unread, such as a list of tools.
absl::Status UnreadColumn(const Adapter& adapter, absl::string_view column);

}  // namespace tdock::data
