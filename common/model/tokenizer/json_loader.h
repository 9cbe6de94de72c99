// Internal to the tokenizer.json loader: what json_loader.cc, which assembles a TokenizerData, and
// json_components.cc, which reads normalisers, pre-tokenisers and decoders, need of each other.
// Thread safety: pure functions. Errors: kInvalidArgument naming the field; kUnimplemented naming a
// component that is not supported.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/tokenizer/tokenizer_data.h"

namespace tandem::model::tokenizer_internal {

using Json = nlohmann::json;

// Errors name the field and the component's `type`; kUnimplemented for a type not supported.
absl::Status ReadNormalizer(const Json& node, Normalizer* normalizer);
absl::StatusOr<std::vector<PreTokenizerStep>> ReadPreTokenizer(const Json& node);
absl::StatusOr<DecoderSpec> ReadDecoder(const Json& node);

// A field of `node`: nullptr when `node` is not an object or the field is absent or null.
const Json* FindField(const Json& node, absl::string_view name);
// Errors: kInvalidArgument when the field is absent or of another type; `where` names the node.
absl::StatusOr<std::string> StringField(const Json& node, absl::string_view name,
                                        absl::string_view where);
// `otherwise` when absent.
absl::StatusOr<bool> BoolField(const Json& node, absl::string_view name, bool otherwise,
                               absl::string_view where);
absl::StatusOr<TokenId> TokenIdField(const Json& node, absl::string_view where);

}  // namespace tandem::model::tokenizer_internal
