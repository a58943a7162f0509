# cmake -DINPUT=f -DOUTPUT=f -DFROM=text -DTO=text -P mutate.cmake: copy of a source with one fault planted.
# FROM must occur exactly once: a mutant that equals its origin would prove nothing.
file(READ ${INPUT} text)
string(FIND "${text}" "${FROM}" first)
string(FIND "${text}" "${FROM}" last REVERSE)
if(first EQUAL -1 OR NOT first EQUAL last)
  message(FATAL_ERROR "${INPUT}: \"${FROM}\" must occur exactly once; choose another mutation in rtl/CMakeLists.txt")
endif()
string(REPLACE "${FROM}" "${TO}" text "${text}")
file(WRITE ${OUTPUT} "${text}")
