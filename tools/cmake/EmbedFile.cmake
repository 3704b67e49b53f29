# Makes a source file of INPUT, with the function NAMESPACE::NAME, which HEADER declares; see troupe_embed_file.
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "#include \"${HEADER}\"

namespace ${NAMESPACE} {

namespace {

constexpr unsigned char bytes[] = {${bytes}};

} // namespace

std::string_view ${NAME}() {
  return {reinterpret_cast<const char*>(bytes), sizeof(bytes)};
}

} // namespace ${NAMESPACE}
")
