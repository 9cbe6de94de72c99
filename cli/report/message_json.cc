#include "cli/report/message_json.h"

#include "absl/strings/escaping.h"

namespace tandem::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

// Element `index` of a list, or with -1 the value of a field that is no list.
Json ValueOf(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection& at = *message.GetReflection();
  const bool listed = index >= 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return listed ? at.GetRepeatedInt32(message, field, index) : at.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return listed ? at.GetRepeatedInt64(message, field, index) : at.GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return listed ? at.GetRepeatedUInt32(message, field, index) : at.GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return listed ? at.GetRepeatedUInt64(message, field, index) : at.GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return listed ? at.GetRepeatedDouble(message, field, index) : at.GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return listed ? at.GetRepeatedFloat(message, field, index) : at.GetFloat(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return listed ? at.GetRepeatedBool(message, field, index) : at.GetBool(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return (listed ? at.GetRepeatedEnum(message, field, index) : at.GetEnum(message, field))
          ->name();
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text =
          listed ? at.GetRepeatedString(message, field, index) : at.GetString(message, field);
      return field->type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(text) : text;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(listed ? at.GetRepeatedMessage(message, field, index)
                           : at.GetMessage(message, field));
  }
  return nullptr;
}

}  // namespace

Json ToJson(const Message& message) {
  Json object = Json::object();
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (field->is_repeated()) {
      Json& list = object[field->name()] = Json::array();
      for (int at = 0; at < reflection.FieldSize(message, field); ++at)
        list.push_back(ValueOf(message, field, at));
    } else if (!field->has_presence() || reflection.HasField(message, field)) {
      object[field->name()] = ValueOf(message, field, -1);
    }
  }
  return object;
}

}  // namespace tandem::cli
