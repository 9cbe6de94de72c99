// Where each sampling and stop parameter lies on the wire.
//
// A row pairs a member of request::SamplingParams or request::StopParams with the accessors of its
// field in the message of the same name. The rows stand in the order of request::kParameters, and
// the compiler checks that they name the same members. Loops over both tables replace code that
// names each parameter: convert.cc, the readers of HTTP bodies, the command line's flags.
//
// The accessors are plain function pointers in constants: a loop over them compiles to the calls
// themselves, without reflection and without allocation.
//
// To add a parameter, see common/request/parameter_table.h.
// Thread safety: constants.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/request/parameter_table.h"
#include "tandem/v1/client.pb.h"
#include "tandem/v1/common.pb.h"

namespace tandem::rpc {

// A number, a whole number or a flag: T is the wire's type, Member the member's (T or optional<T>).
template <typename Params, typename Message, typename Member, typename T>
struct ScalarField {
  using message_type = Message;

  Member Params::*member;
  // nullptr where the wire does not tell an absent field from its default (proto3 without
  // `optional`). The member's default equals the wire's then.
  bool (Message::*has)() const;
  T (Message::*get)() const;
  void (Message::*set)(T);
};
template <typename P, typename W, typename M, typename T>
ScalarField(M P::*, bool (W::*)() const, T (W::*)() const, void (W::*)(T))
    -> ScalarField<P, W, M, T>;
template <typename P, typename W, typename M, typename T>
ScalarField(M P::*, std::nullptr_t, T (W::*)() const, void (W::*)(T)) -> ScalarField<P, W, M, T>;

// Token ids in any order on the wire, ascending in the member.
template <typename Params, typename Message>
struct TokenIdsField {
  using message_type = Message;

  std::vector<TokenId> Params::*member;
  const google::protobuf::RepeatedField<int32_t>& (Message::*get)() const;
  google::protobuf::RepeatedField<int32_t>* (Message::*mutate)();
};
template <typename P, typename W>
TokenIdsField(std::vector<TokenId> P::*,
              const google::protobuf::RepeatedField<int32_t>& (W::*)() const,
              google::protobuf::RepeatedField<int32_t>* (W::*)()) -> TokenIdsField<P, W>;

struct TextsField {
  using message_type = v1::StopParams;

  std::vector<std::string> request::StopParams::*member;
  const google::protobuf::RepeatedPtrField<std::string>& (v1::StopParams::*get)() const;
  google::protobuf::RepeatedPtrField<std::string>* (v1::StopParams::*mutate)();
};

// SamplingParams.logit_bias, a map on the wire and ascending by token in the member.
struct BiasesField {
  using message_type = v1::SamplingParams;

  std::vector<std::pair<TokenId, float>> request::SamplingParams::*member;
};

// SamplingParams.bad_words: token ids on the wire. Clients that write texts put them into
// GenerateRequest.bad_words, and the router makes token ids of them.
struct BadWordsField {
  using message_type = v1::SamplingParams;

  std::vector<std::vector<TokenId>> request::SamplingParams::*member;
};

inline constexpr auto kWireFields = [] {
  using S = request::SamplingParams;
  using E = request::StopParams;
  using WireS = v1::SamplingParams;
  using WireE = v1::StopParams;
  return std::tuple{
      ScalarField{&E::max_tokens, &WireE::has_max_tokens, &WireE::max_tokens,
                  &WireE::set_max_tokens},
      ScalarField{&S::temperature, &WireS::has_temperature, &WireS::temperature,
                  &WireS::set_temperature},
      ScalarField{&S::top_k, &WireS::has_top_k, &WireS::top_k, &WireS::set_top_k},
      ScalarField{&S::top_p, &WireS::has_top_p, &WireS::top_p, &WireS::set_top_p},
      ScalarField{&S::min_p, &WireS::has_min_p, &WireS::min_p, &WireS::set_min_p},
      ScalarField{&S::repetition_penalty, &WireS::has_repetition_penalty,
                  &WireS::repetition_penalty, &WireS::set_repetition_penalty},
      ScalarField{&S::presence_penalty, &WireS::has_presence_penalty, &WireS::presence_penalty,
                  &WireS::set_presence_penalty},
      ScalarField{&S::frequency_penalty, &WireS::has_frequency_penalty, &WireS::frequency_penalty,
                  &WireS::set_frequency_penalty},
      ScalarField{&S::seed, &WireS::has_seed, &WireS::seed, &WireS::set_seed},
      BiasesField{&S::logit_bias},
      TokenIdsField{&S::allowed_token_ids, &WireS::allowed_token_ids,
                    &WireS::mutable_allowed_token_ids},
      BadWordsField{&S::bad_words},
      ScalarField{&S::logprobs, &WireS::has_logprobs, &WireS::logprobs, &WireS::set_logprobs},
      ScalarField{&E::min_tokens, nullptr, &WireE::min_tokens, &WireE::set_min_tokens},
      TextsField{&E::stop, &WireE::stop, &WireE::mutable_stop},
      TokenIdsField{&E::stop_token_ids, &WireE::stop_token_ids, &WireE::mutable_stop_token_ids},
      ScalarField{&E::ignore_eos, nullptr, &WireE::ignore_eos, &WireE::set_ignore_eos},
      ScalarField{&E::include_stop_str_in_output, nullptr, &WireE::include_stop_str_in_output,
                  &WireE::set_include_stop_str_in_output}};
}();

namespace internal {

// Whether both tables name the same members in the same order.
template <size_t... kRows>
constexpr bool NameTheSameMembers(std::index_sequence<kRows...>) {
  const auto same = [](const auto& parameter, const auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(parameter.member)>,
                                 std::decay_t<decltype(field.member)>>) {
      return parameter.member == field.member;
    } else {
      return false;
    }
  };
  return (same(std::get<kRows>(request::kParameters), std::get<kRows>(kWireFields)) && ...);
}

inline constexpr size_t kRowCount = std::tuple_size_v<decltype(kWireFields)>;
static_assert(kRowCount == std::tuple_size_v<decltype(request::kParameters)>,
              "request::kParameters and kWireFields must have one row for each parameter");
static_assert(NameTheSameMembers(std::make_index_sequence<kRowCount>()),
              "request::kParameters and kWireFields must name the same members in the same order");

template <typename Visitor, size_t... kRows>
void VisitRows(Visitor& visit, std::index_sequence<kRows...>) {
  (visit(std::get<kRows>(request::kParameters).about, std::get<kRows>(kWireFields)), ...);
}

}  // namespace internal

// Calls `visit(description, field)` for every parameter, in order. `visit` is a generic lambda:
// fields differ in type.
template <typename Visitor>
void ForEachWireField(Visitor&& visit) {
  internal::VisitRows(visit, std::make_index_sequence<internal::kRowCount>());
}

// The part of `request` that holds the fields of type Field.
template <typename Field>
typename Field::message_type& PartOf(v1::GenerateRequest& request) {
  if constexpr (std::is_same_v<typename Field::message_type, v1::SamplingParams>) {
    return *request.mutable_sampling();
  } else {
    return *request.mutable_stop();
  }
}

}  // namespace tandem::rpc
