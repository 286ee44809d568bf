// JSON objects into cells, with simdjson. Internal to this module.
#pragma once

#include <memory>

#include "data/record_parse.h"

namespace tdock::data {

std::unique_ptr<RecordParser> MakeJsonParser(const RecordLimits& limits);

}  // namespace tdock::data
