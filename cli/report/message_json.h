// A protobuf message as JSON for programs: fields by their names in the .proto file, those with
// default values too, and every number as a number. (Protobuf's own converter, which the router's
// HTTP endpoints use, writes 64-bit numbers as texts, for readers that keep 53 bits.) Covers what
// our messages use: scalars, texts, lists and nested messages. Thread safety: a pure function.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace tandem::cli {

// Enums are their names and bytes are base64. Nested messages and optional fields that are absent
// are left out; a number that is not finite is null. Texts of protobuf are UTF-8, so dump() of the
// result cannot fail.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

}  // namespace tandem::cli
