#include "cli/flags/sequence_flags.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "router/core/request_input.h"

namespace tandem::cli {

namespace {

// Clears the fields that a JSON object names: MergeFrom would not set them to their defaults, and
// would add to lists. Of a nested message those that its own object names.
void ClearNamed(const google::protobuf::Struct& named, google::protobuf::Message& message) {
  const google::protobuf::Reflection& at = *message.GetReflection();
  for (const auto& [name, value] : named.fields()) {
    const google::protobuf::Descriptor& type = *message.GetDescriptor();
    const auto* field = type.FindFieldByName(name);
    if (field == nullptr) field = type.FindFieldByCamelcaseName(name);
    if (field == nullptr) continue;
    const bool nested = value.has_struct_value() && !field->is_repeated() &&
                        field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE;
    if (!nested) {
      at.ClearField(&message, field);
    } else if (at.HasField(message, field)) {
      ClearNamed(value.struct_value(), *at.MutableMessage(&message, field));
    }
  }
}

}  // namespace

void RegisterSequenceFlags(config::Schema& schema, SequenceFlags& flags) {
  schema.Add("n", &flags.n, "Answers; they share the prompt's KV.",
             {.min = 1, .max = router::kSequencesMax, .group = "Answers"});
  schema.Add("best-of", &flags.best_of,
             "Answers generated, of which the likeliest --n are given; 0 = as many as --n.",
             {.min = 0, .max = router::kSequencesMax, .group = "Answers"});
  schema.Add(
      "beam-width", &flags.beam_width,
      "Search for the likeliest answers with this many beams instead of sampling; 0 = sample.",
      {.min = 0, .max = router::kBeamWidthMax, .group = "Answers"});
  schema.Add("echo", &flags.echo, "The prompt's text before each answer.", {.group = "Answers"});
  schema.Add("params", &flags.params,
             "Anything else a GenerateRequest holds, as JSON, such as "
             "{\"bad_words\": [\"no\"], \"stop\": {\"min_tokens\": 9}}.",
             {.group = "Answers"});
}

absl::Status ApplySequenceFlags(const SequenceFlags& flags, v1::GenerateRequest& request) {
  if (flags.n != 1) request.set_n(flags.n);
  if (flags.best_of > 0) request.set_best_of(flags.best_of);
  if (flags.beam_width > 0) {
    request.mutable_beam_search()->set_width(flags.beam_width);
    request.mutable_sampling()->set_temperature(0);
  }
  request.set_echo(flags.echo);
  if (flags.params.empty()) return absl::OkStatus();
  v1::GenerateRequest params;
  const auto parsed = google::protobuf::util::JsonStringToMessage(flags.params, &params);
  if (!parsed.ok())
    return absl::InvalidArgumentError(
        absl::StrCat("--params: ", std::string(parsed.message().data(), parsed.message().size())));
  google::protobuf::Struct named;
  const auto read = google::protobuf::util::JsonStringToMessage(flags.params, &named);
  if (!read.ok())
    return absl::InvalidArgumentError(
        absl::StrCat("--params: ", std::string(read.message().data(), read.message().size())));
  ClearNamed(named, request);
  request.MergeFrom(params);
  return absl::OkStatus();
}

}  // namespace tandem::cli
