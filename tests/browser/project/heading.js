export const heading = "As it was written";
