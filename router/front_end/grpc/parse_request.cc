#include "router/front_end/grpc/parse_request.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/slice.h>

#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::router {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

// Deeper than any message of this API. Bounds the work on hostile bytes.
constexpr int kDepthMax = 8;

// The first byte that begins an ill-formed sequence; nullopt when there is none.
std::optional<size_t> FirstInvalidUtf8(absl::string_view text) {
  using model::tokenizer_internal::ScanUtf8;
  using model::tokenizer_internal::Utf8Kind;
  for (size_t i = 0; i < text.size();) {
    const auto step = ScanUtf8(text.substr(i));
    if (step.kind != Utf8Kind::kValid) return i;
    i += static_cast<size_t>(step.length);
  }
  return std::nullopt;
}

// What is wrong with a field of `bytes`, a message of `type`: "" when nothing was found.
std::string FieldFault(const Descriptor& type, absl::string_view bytes, const std::string& prefix,
                       int depth) {
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                                            static_cast<int>(bytes.size()));
  std::map<int, int> seen;
  while (const uint32_t tag = in.ReadTag()) {
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&in, tag)) return "";
      continue;
    }
    uint32_t size = 0;
    if (!in.ReadVarint32(&size)) return "";
    const auto begin = static_cast<size_t>(in.CurrentPosition());
    if (size > bytes.size() - begin || !in.Skip(static_cast<int>(size))) return "";
    const FieldDescriptor* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field == nullptr) continue;
    std::string path = absl::StrCat(prefix, field->name());
    if (field->is_repeated()) absl::StrAppend(&path, "[", seen[field->number()]++, "]");
    const absl::string_view value = bytes.substr(begin, size);
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      const auto bad = FirstInvalidUtf8(value);
      if (bad.has_value())
        return absl::StrCat(path, ": not valid UTF-8 at byte ", *bad, " of ", value.size(),
                            ", expected UTF-8 text");
    } else if (field->type() == FieldDescriptor::TYPE_MESSAGE && depth < kDepthMax) {
      std::string fault =
          FieldFault(*field->message_type(), value, absl::StrCat(path, "."), depth + 1);
      if (!fault.empty()) return fault;
    }
  }
  return "";
}

}  // namespace

absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  grpc::Slice slice;
  if (!bytes.DumpToSingleSlice(&slice).ok())
    return absl::InternalError("the request's bytes cannot be read");
  if (message.ParseFromArray(slice.begin(), static_cast<int>(slice.size())))
    return absl::OkStatus();
  const absl::string_view whole(reinterpret_cast<const char*>(slice.begin()), slice.size());
  std::string fault = FieldFault(*message.GetDescriptor(), whole, "", 0);
  if (!fault.empty()) return absl::InvalidArgumentError(fault);
  return absl::InvalidArgumentError(absl::StrCat("the request's ", slice.size(),
                                                 " bytes are not a well-formed ",
                                                 message.GetDescriptor()->full_name()));
}

grpc::ByteBuffer SerializeResponse(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace tandem::router
